"""What the accelerator does while it is fed; nothing where there is none."""

from __future__ import annotations

import torch


def accelerator_use() -> list[float]:
    """The share of the time its kernels ran, where the driver tells: one number, or none."""
    if not torch.cuda.is_available():
        return []
    try:
        return [torch.cuda.utilization() / 100]
    except (ModuleNotFoundError, RuntimeError):  # no library that asks the driver
        return []


def accelerator_memory() -> dict[str, float]:
    """Bytes in use, held and at most in use; nothing without an accelerator."""
    if not torch.accelerator.is_available():
        return {}
    return {
        "accelerator_allocated_bytes": torch.accelerator.memory_allocated(),
        "accelerator_reserved_bytes": torch.accelerator.memory_reserved(),
        "accelerator_peak_bytes": torch.accelerator.max_memory_allocated(),
    }
