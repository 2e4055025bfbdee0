"""Samples in memory: one array or tensor, or several of the same length as named fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.fingerprints import digest, field_facts, row_bytes, sampled_blocks
from penstock.sources.base import Arrays, Field
from penstock.sources.requests import check_range, checked_indices, destinations

BLOCK_BYTES = 1 << 20  # storage without chunks of its own: blocks of about a megabyte


def samples_per_block(length: int, sample_bytes: int) -> int:
    """Samples in about a megabyte: at least one, at most all of them.

    >>> samples_per_block(1_000_000, 4096), samples_per_block(10, 4096), samples_per_block(0, 4)
    (256, 10, 1)
    """
    return max(1, min(length, -(-BLOCK_BYTES // max(1, sample_bytes))))


class MemorySource:
    """Arrays or CPU tensors, sample by sample along their first axis, looked at in place.

    >>> source = MemorySource({"x": np.arange(6).reshape(3, 2), "y": np.array([0, 1, 0])})
    >>> len(source), source.fields["x"].shape
    (3, (2,))
    >>> source.view(1, 3)["y"].tolist()
    [1, 0]
    """

    def __init__(self, data: Any) -> None:
        named = data if isinstance(data, Mapping) else {"": data}
        if not named:
            raise SourceError("a source needs at least one array, got an empty mapping")
        if not all(isinstance(name, str) for name in named):
            raise SourceError(f"fields are named by strings, got {list(named)}")
        self._data = {name: _readable(name, value) for name, value in named.items()}
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(f"arrays of one source must have the same length, got {lengths}")
        self._length = next(iter(lengths.values()))
        self._fields = {n: Field(a.shape[1:], a.dtype) for n, a in self._arrays.items()}

    @property
    def _arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The data as arrays, seen anew each time: torch may move a tensor's memory to share it."""
        return {
            name: value.detach().numpy() if is_tensor(value) else value
            for name, value in self._data.items()
        }

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> shape and dtype of one sample."""
        return self._fields

    @property
    def block_samples(self) -> int:
        """Samples in about a megabyte."""
        return samples_per_block(self._length, sum(f.nbytes for f in self._fields.values()))

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"MemorySource({len(self)} samples of {list(self._fields)})"

    def fingerprint(self) -> str:
        """Identity of the data: shapes, dtypes and the bytes of a few blocks."""
        block = self.block_samples
        starts = [i * block for i in sampled_blocks(-(-self._length // block))]
        parts = [row_bytes(a[s : s + block]) for a in self._arrays.values() for s in starts]
        return digest([self._length, field_facts(self._fields)], parts)

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``."""
        check_range(self._length, start, stop)
        arrays = self._arrays
        for name, rows in destinations(self._fields, out, stop - start):
            np.copyto(rows, arrays[name][start:stop])

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples."""
        chosen = checked_indices(self._length, indices)
        arrays = self._arrays
        for name, rows in destinations(self._fields, out, len(chosen)):
            # the indices are checked: "clip" only spares numpy a copy of the output
            np.take(arrays[name], chosen, axis=0, out=rows, mode="clip")

    def view(self, start: int, stop: int) -> Arrays | None:
        """Samples ``start:stop`` in place, read-only."""
        check_range(self._length, start, stop)
        return {name: _read_only(array[start:stop]) for name, array in self._arrays.items()}


def _read_only(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    rows.flags.writeable = False
    return rows


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a torch tensor, without importing torch.

    >>> is_tensor(np.zeros(3))
    False
    """
    return any(f"{t.__module__}.{t.__qualname__}" == "torch.Tensor" for t in type(value).__mro__)


def _readable(name: str, value: Any) -> Any:
    """A tensor as it is, anything else as an array; refused where it cannot be a source."""
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


def _from_tensor(name: str, tensor: Any) -> npt.NDArray[np.generic]:
    try:
        array: npt.NDArray[np.generic] = tensor.detach().numpy()
    except (TypeError, RuntimeError) as error:
        raise SourceError(
            f"tensor {name!r} ({tensor.dtype} on {tensor.device}) cannot be seen as a numpy array: "
            "move it with .cpu(), and convert a dtype numpy lacks (bfloat16) with .float()"
        ) from error
    return array
