"""What is in a batch: tensors, samples, bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

Array: TypeAlias = torch.Tensor | np.ndarray[Any, Any]


def arrays_of(batch: Any) -> Iterator[Array]:
    """All tensors and arrays in a batch (or sample), however nested."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from arrays_of(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from arrays_of(value)
    elif is_dataclass(batch) and not isinstance(batch, type):
        for field in fields(batch):
            yield from arrays_of(getattr(batch, field.name))


def samples_of(batch: Any) -> int:
    """How many samples a batch has: rows of its first array, else its length.

    >>> samples_of({"x": torch.zeros(4, 2), "y": torch.zeros(4)}), samples_of(["a", "b", "c"])
    (4, 3)
    """
    for array in arrays_of(batch):
        return len(array) if array.ndim else 1
    return len(batch) if isinstance(batch, list | tuple) else 1


def bytes_of(batch: Any) -> int:
    """Bytes of all arrays in a batch (or sample).

    >>> bytes_of((torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)))
    64
    """
    return sum(int(array.nbytes) for array in arrays_of(batch))
