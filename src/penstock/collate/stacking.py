"""Values of one field, one per sample, become one batch tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.collate.columns import at
from penstock.collate.errors import CollateError

HUGE_BYTES = 1 << 22  # from here on numpy asks for huge pages


def batch_memory(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised memory for a batch on the CPU.

    Much of it comes from numpy, which asks for huge pages where torch does not: touching 38 MB
    for the first time then takes 3 ms instead of 16.

    >>> batch_memory((2, 3), torch.float32).shape
    torch.Size([2, 3])
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes < HUGE_BYTES:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.empty(size_bytes, np.uint8)).view(dtype).view(*shape)


def tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """The array's memory as a tensor; copied where it is read-only, which no tensor can be."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def stack(values: Sequence[Any], path: str) -> torch.Tensor:
    """One tensor of ``len(values)`` equal-shaped tensors, arrays or numpy numbers.

    >>> stack([np.array([1, 2]), np.array([3, 4])], "x")
    tensor([[1, 2],
            [3, 4]])
    """
    first = values[0]
    if isinstance(first, torch.Tensor):
        return _stack_tensors(values, path)
    if isinstance(first, np.ndarray):
        return _stack_arrays(values, path)
    try:
        return torch.from_numpy(np.array(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise unequal(values, path) from error


def _stack_tensors(tensors: Sequence[torch.Tensor], path: str) -> torch.Tensor:
    first = tensors[0]
    try:
        if first.nbytes * len(tensors) < HUGE_BYTES or not all(_plain(t, first) for t in tensors):
            return torch.stack(tuple(tensors))
        memory = batch_memory((len(tensors), *first.shape), first.dtype)
        return torch.stack(tuple(tensors), out=memory)
    except (TypeError, RuntimeError) as error:
        raise unequal(tensors, path) from error


def _plain(tensor: torch.Tensor, first: torch.Tensor) -> bool:
    on_cpu = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return on_cpu and tensor.dtype == first.dtype and not tensor.requires_grad


def _stack_arrays(arrays: Sequence[np.ndarray[Any, Any]], path: str) -> torch.Tensor:
    first = arrays[0]
    if first.dtype.kind not in "biufc":
        raise CollateError(
            f"{at(path, 0)} is an array of {first.dtype}, which no tensor can hold: "
            "give numbers, or a list of strings"
        )
    if not all(isinstance(a, np.ndarray) and a.shape == first.shape for a in arrays):
        raise unequal(arrays, path)
    if first.ndim == 0:
        return torch.from_numpy(np.array(arrays))
    return torch.from_numpy(np.concatenate(arrays).reshape(len(arrays), *first.shape))


def unequal(values: Sequence[Any], path: str) -> CollateError:
    """The error that names the first sample that does not fit sample 0, and how."""
    first = describe(values[0])
    for number, value in enumerate(values):
        if value is None:
            return none_at(path, number)
        if describe(value) != first:
            return CollateError(
                f"{at(path, number)} is {describe(value)}, sample 0 has {first}: samples of a "
                "batch must be alike; pad or convert them, or give a collator of your own"
            )
    return CollateError(f"{at(path, 0)} is {first}, which cannot be made a tensor")


def none_at(path: str, number: int) -> CollateError:
    """The error for a value that is None."""
    return CollateError(
        f"{at(path, number)} is None: give every sample a value there, or leave the field out of "
        "all of them"
    )


def describe(value: Any) -> str:
    """A value's kind and shape, in words."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"a {type(value).__name__} of shape {tuple(value.shape)} on {_device(value)}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _device(value: Any) -> str:
    return str(value.device) if isinstance(value, torch.Tensor) else "cpu"
