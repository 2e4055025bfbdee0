"""Sources made of arrays that are read by ranges: one reader for each field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.errors import SourceError
from penstock.fingerprints import digest
from penstock.sources.base import Arrays, BaseSource, Field, Indices, Rows
from penstock.sources.ragged_rows import block_runs
from penstock.sources.thread_buffers import thread_array


class ArrayReader(Protocol):
    """One array, read by ranges of samples; ``field`` leaves the axis of samples out."""

    @property
    def samples(self) -> int:
        """The number of samples."""
        ...

    @property
    def field(self) -> Field:
        """Shape and dtype of one sample."""
        ...

    @property
    def chunk_samples(self) -> int:
        """Samples that are cheapest to read together."""
        ...

    def read(self, start: int, stop: int, out: Rows) -> None:
        """Fill ``out`` with samples ``start:stop``."""
        ...

    def view(self, start: int, stop: int) -> Rows | None:
        """Return samples ``start:stop`` over mapped memory, or None if impossible."""
        ...

    def fingerprint(self) -> str:
        """Return an identity of the array's data."""
        ...


class ArraySource(BaseSource):
    """Base class of sources over array readers; subclasses differ in how arrays are found.

    Args:
        readers: The reader of each field, by field name.
        name: The name of the source for messages.
    """

    def __init__(self, readers: Mapping[str, ArrayReader], name: str) -> None:
        lengths = {field: reader.samples for field, reader in readers.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(
                f"arrays of {name} have different lengths {lengths}: choose arrays of one length, "
                f"such as open_source({name!r}, fields={_largest(readers)})"
            )
        fields = {field: reader.field for field, reader in readers.items()}
        super().__init__(next(iter(lengths.values())), fields)
        self._readers = dict(readers)

    @property
    def block_samples(self) -> int:
        """Samples in a chunk (of several arrays, the widest's); in shards, in an inner chunk."""
        widest = max(self._readers.values(), key=lambda reader: reader.field.nbytes)
        return max(1, min(widest.chunk_samples, self._length))

    def fingerprint(self) -> str:
        """Return an identity of the data: that of each array."""
        return digest({name: reader.fingerprint() for name, reader in self._readers.items()}, [])

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        for name, rows in out.items():
            self._readers[name].read(start, stop, rows)

    def _take(self, indices: Indices, out: Arrays) -> None:
        for name, rows in out.items():
            reader = self._readers[name]
            for positions in block_runs(indices, max(1, reader.chunk_samples)):
                wanted = indices[positions]
                first, last = int(wanted[0]), int(wanted[-1])
                block = reader.view(first, last + 1)
                if block is None:
                    shape = (last - first + 1, *reader.field.shape)
                    block = thread_array("rows", shape, reader.field.dtype)
                    reader.read(first, last + 1, block)
                rows[positions] = block[wanted - first]

    def _view(self, start: int, stop: int) -> Arrays | None:
        views = {}
        for name, reader in self._readers.items():
            rows = reader.view(start, stop)
            if rows is None:
                return None
            views[name] = rows
        return views


def _largest(readers: Mapping[str, ArrayReader]) -> list[str]:
    """Return the names of the arrays of one length that hold the most bytes."""
    sizes: dict[int, int] = {}
    for reader in readers.values():
        size = reader.samples * reader.field.nbytes
        sizes[reader.samples] = sizes.get(reader.samples, 0) + size
    length = max(sizes, key=sizes.__getitem__)
    return [name for name, reader in readers.items() if reader.samples == length]
