"""What this machine has, as far as loading is concerned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from penstock.streaming.budget import usable_cores

CGROUP = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores that may be used, and whether there is an accelerator to feed.

    >>> Machine(cores=32, accelerator=True).cores
    32
    """

    cores: int
    accelerator: bool


@cache
def this_machine() -> Machine:
    """The machine this process runs on: cores under affinity and cgroup quota."""
    return Machine(min(usable_cores(), _quota()), torch.accelerator.is_available())


def _quota() -> int:
    """Cores that a container may use; no limit where there is none."""
    try:
        quota, period = CGROUP.read_text().split()
    except (OSError, ValueError):
        return 1 << 20
    return 1 << 20 if quota == "max" else max(1, int(quota) // int(period))
