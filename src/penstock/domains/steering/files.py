"""What a .pt file holds, loaded so that nothing in it can run; and ragged lists as two arrays."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.checks import InvalidDataError

Ragged: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # offsets, values

# what torch.load raises on bytes that are not a file of its own, besides refusing them
_UNREADABLE = (
    RuntimeError,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    AssertionError,
)


def load_pt(path: Path, *, mapped: bool) -> Any:
    """What a .pt file holds: tensors, numbers, lists; anything else is refused, not run."""
    if not path.is_file():
        raise InvalidDataError(f"{path.name} not found in {path.parent}")
    try:
        with warnings.catch_warnings():  # of pickle protocols: what it cannot read, it refuses
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise InvalidDataError(
            f"{path.name} is refused: it holds more than tensors, numbers and lists, and loading "
            "it could run code; write it again with torch.save of plain tensors"
        ) from error
    except _UNREADABLE as error:
        if mapped and "mmap can only be used" in str(error):  # an old file: not in zip form
            return load_pt(path, mapped=False)
        raise InvalidDataError(
            f"{path.name} cannot be read ({brief(error)}): it is truncated or not a .pt file; "
            "write it again"
        ) from error


def ragged(value: Any, place: str) -> Ragged:
    """Lists of ids (or offsets and values, as tensors) as offsets and values.

    >>> ragged([[4, 5], [], [6]], "keywords")
    (array([0, 2, 2, 3]), array([4, 5, 6]))
    """
    if isinstance(value, list | tuple) and len(value) == 2:
        offsets, values = value
        if isinstance(offsets, torch.Tensor) and isinstance(values, torch.Tensor):
            return _checked_ragged(offsets, values, place)
    if not isinstance(value, list):
        raise InvalidDataError(f"{place} must hold a list of lists, found {type(value).__name__}")
    flat: list[int] = []
    offsets = np.zeros(len(value) + 1, np.int64)
    for row, ids in enumerate(value):
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise InvalidDataError(f"{place} row {row} must be a list of integers, found {ids!r}")
        flat += ids
        offsets[row + 1] = len(flat)
    return offsets, np.array(flat, np.int64)


def _checked_ragged(offsets: torch.Tensor, values: torch.Tensor, place: str) -> Ragged:
    whole = offsets.dtype == values.dtype == torch.int64 and offsets.ndim == values.ndim == 1
    if not whole or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(values):
        raise InvalidDataError(f"{place} must hold int64 offsets from 0 to the number of values")
    if bool((offsets.diff() < 0).any()):
        raise InvalidDataError(f"{place} has offsets that fall: they must rise")
    return offsets.numpy(), values.numpy()


def plain(tensor: torch.Tensor) -> bool:
    """Is it an ordinary dense tensor in memory?"""
    return (
        tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    )


def brief(error: BaseException) -> str:
    """The first line of an error."""
    return str(error).split("\n")[0][:120] or type(error).__name__
