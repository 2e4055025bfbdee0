"""Numbers as people read them."""

from __future__ import annotations

import math
from typing import Any

import torch


def in_time(seconds: float) -> str:
    """A duration, with a unit.

    >>> in_time(0.0421), in_time(75), in_time(7500), in_time(math.inf)
    ('0.042 s', '1 min 15 s', '2 h 5 min', 'without end')
    """
    if math.isinf(seconds):
        return "without end"
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.1f} days"


def shapes_of(batch: Any) -> str:
    """Words for what a batch is made of.

    >>> shapes_of((torch.zeros(4, 2), {"y": torch.zeros(4, dtype=torch.int64)}))
    '(float32 4x2, {y: int64 4})'
    """
    if isinstance(batch, torch.Tensor):
        kind = str(batch.dtype).removeprefix("torch.")
        return f"{kind} {'x'.join(map(str, batch.shape)) or 'scalar'}"
    if isinstance(batch, dict):
        return "{" + ", ".join(f"{key}: {shapes_of(each)}" for key, each in batch.items()) + "}"
    if isinstance(batch, list | tuple):
        return "(" + ", ".join(map(shapes_of, batch)) + ")"
    return type(batch).__name__
