"""In which file, and where in it, the stored bytes of a chunk are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.sources.scratch import Bytes
from penstock.sources.zarr.codecs import BadChunk, verify_checksum
from penstock.sources.zarr.layout import ArrayLayout, ShardLayout
from penstock.sources.zarr.slots import Slots
from penstock.sources.zarr.stored import StoredBytes, new_memory

KEPT_INDEXES = 256
MISSING = 2**64 - 1

Index = npt.NDArray[np.uint64]


class Location(NamedTuple):
    """``nbytes`` from ``offset`` of the file ``key``; None means all of it."""

    key: str
    offset: int = 0
    nbytes: int | None = None


class ChunkLocator:
    """Places of chunks in storage; the indexes of shards are read once and kept (bounded)."""

    def __init__(self, stored: StoredBytes, prefix: str, layout: ArrayLayout) -> None:
        self._stored, self._prefix, self._layout = stored, prefix, layout
        self._indexes: Slots[Index] = Slots(KEPT_INDEXES)
        counts = tuple(-(-n // c) for n, c in zip(layout.shape, layout.chunks, strict=True))
        self._chunk_counts = tuple(max(1, count) for count in counts)

    def number(self, place: tuple[int, ...]) -> int:
        """The chunks of an array, counted in storage order."""
        return _flat(place, self._chunk_counts)

    def key(self, place: tuple[int, ...]) -> str:
        """The file that holds the chunk at ``place``: its own, or that of its shard."""
        return self._prefix + self._layout.keys(self._file(place))

    def __call__(self, place: tuple[int, ...]) -> Location | None:
        """Where the chunk at ``place`` is; None where its shard is missing, or says that it is."""
        shards, file = self._layout.shards, self._file(place)
        key = self._prefix + self._layout.keys(file)
        if shards is None:
            return Location(key)
        per_shard = shards.chunks_per_shard
        index = self._index(shards, self.number(file), key)
        if index is None:
            return None
        cell = _flat(tuple(p % n for p, n in zip(place, per_shard, strict=True)), per_shard)
        offset, nbytes = index[cell].tolist()
        if offset == MISSING:
            return None
        if nbytes > self._layout.codecs.most_stored_bytes(self._layout.chunk_bytes):
            raise _damaged(self._stored.name(key), f"chunk {place} cannot have {nbytes} bytes")
        if offset >= 2**62:
            raise _damaged(self._stored.name(key), f"chunk {place} cannot be at byte {offset}")
        return Location(key, offset, nbytes)

    def _file(self, place: tuple[int, ...]) -> tuple[int, ...]:
        if self._layout.shards is None:
            return place
        per_shard = self._layout.shards.chunks_per_shard
        return tuple(at // count for at, count in zip(place, per_shard, strict=True))

    def _index(self, shards: ShardLayout, number: int, key: str) -> Index | None:
        index = self._indexes.get(number)
        if index is None:
            size = shards.index_bytes
            raw = self._stored.fetch(key, new_memory, -size if shards.index_at_end else 0, size)
            if raw is None:
                return None
            index = _parsed(raw, shards, self._stored.name(key))
            self._indexes.put(number, index)
        return index


def _flat(place: tuple[int, ...], counts: tuple[int, ...]) -> int:
    number = 0
    for at, count in zip(place, counts, strict=True):
        number = number * count + at
    return number


def _parsed(raw: Bytes, shards: ShardLayout, name: str) -> Index:
    if shards.index_checksum:
        try:
            verify_checksum(raw[:-4], raw[-4:])
        except BadChunk as error:
            raise _damaged(name, str(error)) from error
        raw = raw[:-4]
    return raw.view("<u8").reshape(-1, 2)


def _damaged(name: str, why: str) -> SourceError:
    return SourceError(f"the index of shard {name} is damaged ({why}): restore the file")
