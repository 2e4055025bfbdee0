"""Samples in memory: one array or tensor, or several of the same length as named fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.arguments import mapping
from penstock.errors import SourceError
from penstock.sources.base import BaseSource
from penstock.sources.contract import Arrays, Field, Indexed, Indices, Rows, checked_axis


class MemorySource(BaseSource):
    """Arrays or CPU tensors. They are not copied.

    Args:
        data: An array or a tensor, or a dict of them by field name.
        along: The number of the axis of samples.

    >>> source = MemorySource({"x": np.arange(6).reshape(3, 2), "y": np.array([0, 1, 0])})
    >>> len(source), source.fields["x"].shape
    (3, (2,))
    >>> source.view(1, 3)["y"].tolist()
    [1, 0]
    """

    def __init__(self, data: Indexed, *, along: int | str = 0) -> None:
        named = data if isinstance(data, Mapping) else {"": data}
        named = mapping("a dict of fields", named, error=SourceError)
        if not named:
            raise SourceError("a source needs at least one array, got an empty mapping")
        readable = {name: _readable(name, value) for name, value in named.items()}
        self._data = {name: _moved(name, value, along) for name, value in readable.items()}
        arrays = self._arrays
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(f"arrays of one source must have the same length, got {lengths}")
        fields = {name: Field(array.shape[1:], array.dtype) for name, array in arrays.items()}
        super().__init__(next(iter(lengths.values())), fields)

    @property
    def _arrays(self) -> dict[str, Rows]:
        # converted on each use: torch may move the memory of a tensor to share it with a worker
        return {
            name: value.detach().numpy() if is_tensor(value) else value
            for name, value in self._data.items()
        }

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        arrays = self._arrays
        for name, rows in out.items():
            np.copyto(rows, arrays[name][start:stop])

    def _take(self, indices: Indices, out: Arrays) -> None:
        arrays = self._arrays
        for name, rows in out.items():
            # the indices are checked: "clip" only saves numpy a copy of the output
            np.take(arrays[name], indices, axis=0, out=rows, mode="clip")

    def _view(self, start: int, stop: int) -> Arrays:
        views = {name: array[start:stop] for name, array in self._arrays.items()}
        for rows in views.values():
            rows.flags.writeable = False
        return views


def is_tensor(value: object) -> bool:
    """Return whether ``value`` is a torch tensor, without importing torch.

    >>> is_tensor(np.zeros(3))
    False
    """
    return any(f"{t.__module__}.{t.__qualname__}" == "torch.Tensor" for t in type(value).__mro__)


def _readable(name: str, value: Any) -> Any:
    """Return a tensor as it is, anything else as an array; refuse what cannot be samples."""
    try:
        array = _from_tensor(name, value) if is_tensor(value) else np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise SourceError(f"{name or 'the data'!r} is not an array: {error}") from error
    if array.ndim == 0 or array.dtype.hasobject:
        raise SourceError(
            f"array {name!r} has {array.ndim} dimensions of dtype {array.dtype}: "
            "a source needs arrays of fixed-size items with a first axis of samples"
        )
    if is_tensor(value):
        return value
    # torch and the gathers need the machine's byte order; a copy happens only where it differs
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _moved(name: str, value: Any, along: int | str) -> Any:
    """Return a view with the axis of samples first."""
    axis = checked_axis(f"array {name!r}", value.ndim, along)
    return value.movedim(axis, 0) if is_tensor(value) else np.moveaxis(value, axis, 0)


def _from_tensor(name: str, tensor: Any) -> Rows:
    try:
        array: Rows = tensor.detach().numpy()
    except (TypeError, RuntimeError) as error:
        raise SourceError(
            f"tensor {name!r} ({tensor.dtype} on {tensor.device}) cannot become a numpy array: "
            "move it with .cpu(), and convert a dtype that numpy lacks (bfloat16) with .float()"
        ) from error
    return array
