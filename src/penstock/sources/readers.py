"""Sources made of arrays that are read by ranges: one reader for each field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.fingerprints import digest
from penstock.sources.base import Arrays, Field
from penstock.sources.gathering import take_by_blocks
from penstock.sources.requests import check_range, checked_indices, destinations

Rows: TypeAlias = npt.NDArray[np.generic]


class ArrayReader(Protocol):
    """One array, read by ranges of samples; ``field`` leaves the axis of samples out."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        ...

    @property
    def field(self) -> Field:
        """Shape and dtype of one sample."""
        ...

    @property
    def chunk_samples(self) -> int:
        """Samples that storage gives most cheaply in one go."""
        ...

    def read(self, start: int, stop: int, out: Rows) -> None:
        """Fill ``out`` with samples ``start:stop``."""
        ...

    def view(self, start: int, stop: int) -> Rows | None:
        """Samples ``start:stop`` over mapped memory; None where that cannot be."""
        ...

    def fingerprint(self) -> str:
        """Identity of the array's data."""
        ...


class ReaderSource:
    """What sources over array readers have in common; they differ in how arrays are found."""

    def __init__(self, readers: Mapping[str, ArrayReader], name: str) -> None:
        lengths = {field: reader.samples for field, reader in readers.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(
                f"arrays of {name} have different lengths {lengths}: choose those that belong "
                f"together, such as open_source({name!r}, fields={_largest(readers)})"
            )
        self._readers = dict(readers)
        self._length = next(iter(lengths.values()))
        self._fields = {field: reader.field for field, reader in readers.items()}

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> shape and dtype of one sample."""
        return self._fields

    @property
    def block_samples(self) -> int:
        """Samples in a chunk (the longest of several arrays'); in shards, an inner chunk."""
        longest = max(reader.chunk_samples for reader in self._readers.values())
        return max(1, min(longest, self._length))

    def __len__(self) -> int:
        return self._length

    def fingerprint(self) -> str:
        """Identity of the data: that of each array."""
        return digest({name: reader.fingerprint() for name, reader in self._readers.items()}, [])

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``."""
        check_range(self._length, start, stop)
        for name, rows in destinations(self._fields, out, stop - start):
            self._readers[name].read(start, stop, rows)

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples; each chunk is decoded once."""
        chosen = checked_indices(self._length, indices)
        for name, rows in destinations(self._fields, out, len(chosen)):
            reader = self._readers[name]
            block = max(1, reader.chunk_samples)
            take_by_blocks(reader.read, reader.view, self._fields[name], block, chosen, rows)

    def view(self, start: int, stop: int) -> Arrays | None:
        """Samples ``start:stop`` over mapped files, where every field can show them."""
        check_range(self._length, start, stop)
        views = {}
        for name, reader in self._readers.items():
            rows = reader.view(start, stop)
            if rows is None:
                return None
            views[name] = rows
        return views


def _largest(readers: Mapping[str, ArrayReader]) -> list[str]:
    """Names of the arrays of one length that hold the most bytes."""
    sizes: dict[int, int] = {}
    for reader in readers.values():
        size = reader.samples * reader.field.nbytes
        sizes[reader.samples] = sizes.get(reader.samples, 0) + size
    length = max(sizes, key=sizes.__getitem__)
    return [name for name, reader in readers.items() if reader.samples == length]
