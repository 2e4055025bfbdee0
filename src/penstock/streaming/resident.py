"""Fields that are kept in memory whole, beside fields that are read block by block."""

from __future__ import annotations

import threading
from collections.abc import Collection

import numpy as np

from penstock.sources.base import Arrays, BaseSource, Indices, Rows, Source
from penstock.sources.ragged_rows import offsets_of


class ResidentSource(BaseSource):
    """A source with some of its fields in memory: they are read once, with the first block.

    Labels are often stored in one chunk, which would be decoded again for every block.

    Args:
        source: The source.
        names: Fields to keep in memory.
    """

    def __init__(self, source: Source, names: Collection[str]) -> None:
        super().__init__(len(source), source.fields)
        self._source, self._names = source, frozenset(names)
        self._kept: dict[str, Rows] | None = None
        self._lock = threading.Lock()
        self.in_flight = getattr(source, "in_flight", None)

    @property
    def block_samples(self) -> int:
        """That of the source."""
        return self._source.block_samples

    def offsets(self, name: str) -> Indices:
        """Return those of the source."""
        return offsets_of(self._source, name)

    def __repr__(self) -> str:
        return repr(self._source)

    def fingerprint(self) -> str:
        """Return that of the source."""
        return self._source.fingerprint()

    def drop(self) -> None:
        """Free the memory; the next read loads the fields again."""
        self._kept = None

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        kept = self._resident()
        for name in self._names & out.keys():
            np.copyto(out[name], kept[name][start:stop])
        rest = {name: rows for name, rows in out.items() if name not in self._names}
        if rest:
            self._source.read(start, stop, rest)

    def _take(self, indices: Indices, out: Arrays) -> None:
        self._source.take(indices, out)

    def _resident(self) -> dict[str, Rows]:
        with self._lock:
            if self._kept is None:
                kept: dict[str, Rows] = {}
                for name in sorted(self._names):
                    field = self._fields[name]
                    kept[name] = np.empty((self._length, *field.shape), field.dtype)
                self._source.read(0, self._length, kept)
                self._kept = kept
            return self._kept
