"""A Zarr array, or the arrays of a group, as a source of samples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.sources.base import Arrays, Field
from penstock.sources.fingerprints import digest
from penstock.sources.gathering import take_by_blocks
from penstock.sources.requests import check_range, checked_indices, destinations
from penstock.sources.zarr.opening import ZarrArray, open_arrays
from penstock.sources.zarr.stored import Directory, StoredBytes


class ZarrSource:
    """Samples along one axis of a Zarr array (version 2 or 3), or of all arrays of a group.

    Chunks with common codecs are decoded straight into their place (``reader`` says "direct"),
    anything else is read by zarr-python; both give equal arrays. Missing chunks are fill values,
    damaged ones an error that names the file.

    Args:
        path: A directory, or an object that gives stored bytes.
        fields: Names of arrays in a group (paths such as ``"a/b"`` too); all of them if None.
        axis: The axis of samples, in every array.
        direct: False leaves every array to zarr-python.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | StoredBytes,
        *,
        fields: Sequence[str] | None = None,
        axis: int = 0,
        direct: bool = True,
    ) -> None:
        self._stored: StoredBytes = Directory(path) if isinstance(path, str | os.PathLike) else path
        self._arrays = open_arrays(self._stored, fields=fields, axis=axis, direct=direct)
        lengths = {name: array.shape[axis] for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(
                f"arrays of {self._stored.name('')} have different lengths {lengths}: "
                "choose those that belong together with fields=[...]"
            )
        self._length = next(iter(lengths.values()))
        self._fields = {name: _field(array) for name, array in self._arrays.items()}

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> shape and dtype of one sample."""
        return self._fields

    @property
    def block_samples(self) -> int:
        """Samples in a chunk (the longest of several arrays'); in shards, an inner chunk."""
        longest = max(array.chunk_samples for array in self._arrays.values())
        return max(1, min(longest, self._length))

    @property
    def readers(self) -> Mapping[str, str]:
        """Who decodes each field: "direct", or "zarr-python" and why."""
        return {name: _reader(array) for name, array in self._arrays.items()}

    @property
    def reader(self) -> str:
        """Who decodes: "direct" if all fields are, otherwise "zarr-python"."""
        direct = all(array.reader == "direct" for array in self._arrays.values())
        return "direct" if direct else "zarr-python"

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        readers = ", ".join(f"{name!r}: {reader}" for name, reader in self.readers.items())
        return f"ZarrSource({self._stored.name('')!r}, {len(self)} samples, {{{readers}}})"

    def fingerprint(self) -> str:
        """Identity of the data: that of each array."""
        parts = {name: array.fingerprint() for name, array in self._arrays.items()}
        return digest(parts, [])

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``."""
        check_range(self._length, start, stop)
        for name, rows in destinations(self._fields, out, stop - start):
            self._arrays[name].read(start, stop, rows)

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples; each chunk is decoded once."""
        chosen = checked_indices(self._length, indices)
        for name, rows in destinations(self._fields, out, len(chosen)):
            array = self._arrays[name]
            block = max(1, array.chunk_samples)
            take_by_blocks(array.read, self._fields[name], block, chosen, rows)

    def view(self, start: int, stop: int) -> Arrays | None:
        """Samples ``start:stop`` over mapped files, where they lie in one raw chunk per field."""
        check_range(self._length, start, stop)
        views = {}
        for name, array in self._arrays.items():
            rows = array.view(start, stop)
            if rows is None:
                return None
            views[name] = rows
        return views


def _field(array: ZarrArray) -> Field:
    shape = tuple(n for axis, n in enumerate(array.shape) if axis != array.axis)
    return Field(shape, array.dtype)


def _reader(array: ZarrArray) -> str:
    return array.reader if array.reader == "direct" else f"{array.reader} ({array.why})"
