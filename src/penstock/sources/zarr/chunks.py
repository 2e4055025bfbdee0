"""The chunks of an array: how they are stored, which of them a read needs, where their bytes are.

`ArrayLayout` describes the array, `Grid` turns a range of samples into reads of chunks (plain
arithmetic), and `ChunkLocator` finds the file and the bytes of each chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.sources.array_source import Box
from penstock.sources.storage import ByteStore, new_memory
from penstock.sources.zarr.codecs import BadChunk, CodecChain, verify_checksum

Position: TypeAlias = tuple[int, ...]
Slices: TypeAlias = tuple[slice, ...]
Crop: TypeAlias = Box
ShardIndex: TypeAlias = npt.NDArray[np.uint64]
Value = TypeVar("Value")

CACHED_INDEXES = 256
MISSING = 2**64 - 1


# -- how an array is stored


@dataclass(frozen=True, slots=True)
class ChunkKeys:
    """The spelling of the names of chunk files.

    >>> ChunkKeys("c/", "/")((2, 0)), ChunkKeys("", ".")((2, 0))
    ('c/2/0', '2.0')
    """

    prefix: str
    separator: str

    def __call__(self, position: Position) -> str:
        """Return the file of the chunk (or shard) at a position in the grid."""
        return self.prefix + self.separator.join(map(str, position))


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Several chunks in one file, and where its index of them is."""

    chunks_per_shard: tuple[int, ...]
    index_at_end: bool
    index_checksum: bool

    @property
    def index_bytes(self) -> int:
        """Size of the index: offset and length of each chunk, then perhaps a checksum."""
        return 16 * prod(self.chunks_per_shard) + 4 * self.index_checksum


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Shape, dtype, chunks, file names, fill value and codecs of an array that is read directly."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    chunks: tuple[int, ...]
    keys: ChunkKeys
    fill: np.generic
    codecs: CodecChain
    shards: ShardLayout | None = None

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk; chunks at the end are stored whole too, with padding."""
        return prod(self.chunks) * self.dtype.itemsize

    @property
    def is_raw(self) -> bool:
        """Whether the stored bytes are the array's bytes."""
        return self.codecs.compressor is None and not self.codecs.checksum


# -- which chunks hold a range of samples


class ChunkSpan(NamedTuple):
    """Along one axis: part ``inside`` of chunk ``number`` is part ``target`` of the output."""

    number: int
    inside: slice
    target: slice


ChunkSpans: TypeAlias = tuple[ChunkSpan, ...]


class ChunkRead(NamedTuple):
    """Copy ``inside`` of the chunk at ``position`` in the grid to ``target`` of the output."""

    position: Position
    inside: Slices
    target: Slices
    whole: bool


class Grid:
    """A shape divided into chunks, with samples along one of its axes.

    Only a ``crop`` (first, last) of the other axes is read; the axis of samples is not cropped.

    >>> grid = Grid(shape=(10, 6), chunks=(4, 6), axis=0)
    >>> [(read.position, read.inside[0], read.whole) for read in grid.reads(3, 8)]
    [((0, 0), slice(3, 4, None), False), ((1, 0), slice(0, 4, None), True)]
    """

    def __init__(
        self, shape: tuple[int, ...], chunks: tuple[int, ...], axis: int, crop: Crop | None = None
    ) -> None:
        self.samples_per_chunk = chunks[axis]
        self.chunk_counts = tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
        self._shape, self._chunks, self._axis = shape, chunks, axis
        self._wanted = crop or tuple((0, n) for n in shape)
        # The other axes are the same for every read: the first read lists their chunks, once.
        # That is not done here: opening an array must not cost more when it has more chunks.
        self._others: tuple[list[ChunkSpans], list[ChunkSpans]] | None = None
        self._one_per_sample = all(
            first < last and first // chunk == (last - 1) // chunk
            for (first, last), chunk in self._other_axes()
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_others": None}

    def reads(self, start: int, stop: int) -> Iterator[ChunkRead]:
        """Yield the chunks that hold samples ``start:stop``, in storage order."""
        others = self._others
        if others is None:
            spans = [spans_of(*part, c) for part, c in self._other_axes()]
            others = list(product(*spans[: self._axis])), list(product(*spans[self._axis :]))
            self._others = others
        along = spans_of(start, stop, self.samples_per_chunk)
        for before, middle, after in product(others[0], along, others[1]):
            position, inside, target = zip(*before, middle, *after, strict=True)
            sizes = zip(inside, self._chunks, strict=True)
            whole = all(part.stop - part.start == chunk for part, chunk in sizes)
            yield ChunkRead(position, inside, target, whole)

    def within(self, box: Crop) -> Grid:
        """Return the grid with only the part ``box`` of each axis of a sample."""
        wanted = [*self._wanted]
        axes = [axis for axis in range(len(wanted)) if axis != self._axis]
        for axis, (first, last) in zip(axes, box, strict=True):
            begin = wanted[axis][0]
            wanted[axis] = (begin + first, begin + last)
        return Grid(self._shape, self._chunks, self._axis, tuple(wanted))

    def one_read(self, start: int, stop: int) -> ChunkRead | None:
        """Return the read of the one chunk that holds them all, or None if it takes several."""
        if (stop - 1) // self.samples_per_chunk != start // self.samples_per_chunk:
            return None
        return next(self.reads(start, stop), None) if self._one_per_sample else None

    def position(self, number: int) -> Position:
        """Return the position in the grid of the chunk with that number in storage order.

        >>> Grid(shape=(10, 6), chunks=(4, 2), axis=0).position(4)
        (1, 1)
        """
        position = []
        for count in reversed(self.chunk_counts):  # numpy's unravel_index ends at 2**63
            number, at = divmod(number, count)
            position.append(at)
        return tuple(reversed(position))

    def _other_axes(self) -> list[tuple[tuple[int, int], int]]:
        """Return the wanted part and the chunk length of each axis but that of samples."""
        axes = list(zip(self._wanted, self._chunks, strict=True))
        return axes[: self._axis] + axes[self._axis + 1 :]


def spans_of(start: int, stop: int, chunk: int) -> list[ChunkSpan]:
    """Return the part of ``start:stop`` in each chunk along one axis.

    >>> spans_of(3, 5, 4)[1]
    ChunkSpan(number=1, inside=slice(0, 1, None), target=slice(1, 2, None))
    """
    if stop <= start:
        return []
    spans = []
    for number in range(start // chunk, -(-stop // chunk)):
        first, last = max(start, number * chunk), min(stop, (number + 1) * chunk)
        inside = slice(first - number * chunk, last - number * chunk)
        spans.append(ChunkSpan(number, inside, slice(first - start, last - start)))
    return spans


# -- where the bytes of a chunk are


class FixedCache(Generic[Value]):
    """At most ``count`` values by number; numbers that differ by ``count`` replace each other.

    Replacing a list item is atomic in Python: threads need no lock, and a fork cannot leave one
    locked.

    >>> cache = FixedCache[str](2)
    >>> cache.put(0, "a"); cache.put(1, "b"); cache.put(2, "c")
    >>> cache.get(0), cache.get(1), cache.get(2)
    (None, 'b', 'c')
    """

    def __init__(self, count: int) -> None:
        self._items: list[tuple[int, Value] | None] = [None] * count

    def get(self, number: int) -> Value | None:
        """Return the value of ``number``, or None if it was never stored or was replaced."""
        item = self._items[number % len(self._items)]
        return item[1] if item is not None and item[0] == number else None

    def put(self, number: int, value: Value) -> None:
        """Store ``value`` until another number takes its item."""
        self._items[number % len(self._items)] = (number, value)

    def __reduce__(self) -> tuple[type[FixedCache[Value]], tuple[int]]:
        return type(self), (len(self._items),)  # the values are only valid in this process


class Location(NamedTuple):
    """``nbytes`` from ``offset`` of the file ``key``; None means all of it."""

    key: str
    offset: int = 0
    nbytes: int | None = None


def side_by_side(places: Sequence[Location | None], most: int, gap: int = 0) -> list[range]:
    """Return ranges of places that are adjacent in one file, of ``most`` bytes or one place.

    Args:
        places: Sorted by file and offset.
        most: Bytes of a range.
        gap: Unneeded bytes between two places that may be fetched.

    >>> side_by_side([Location("a", 0, 5), Location("a", 5, 2), Location("b", 7, 1), None], 100)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    groups, first = [], 0
    for i in range(1, len(places) + 1):
        begin, last = places[first], places[i - 1]
        this = places[i] if i < len(places) else None
        if begin and last and this and this.key == last.key and last.nbytes and this.nbytes:
            between = this.offset - last.offset - last.nbytes
            if 0 <= between <= gap and this.offset + this.nbytes - begin.offset <= most:
                continue
        groups.append(range(first, i))
        first = i
    return groups


class ChunkLocator:
    """Finds chunks in storage; the indexes of shards are read once and cached (bounded)."""

    def __init__(self, store: ByteStore, prefix: str, layout: ArrayLayout) -> None:
        self._store, self._prefix, self._layout = store, prefix, layout
        self._indexes: FixedCache[ShardIndex] = FixedCache(CACHED_INDEXES)
        counts = tuple(-(-n // c) for n, c in zip(layout.shape, layout.chunks, strict=True))
        self._chunk_counts = tuple(max(1, count) for count in counts)

    def number(self, position: Position) -> int:
        """Return the number of a chunk in storage order."""
        return _flat(position, self._chunk_counts)

    def key(self, position: Position) -> str:
        """Return the file that holds the chunk: its own, or that of its shard."""
        return self._prefix + self._layout.keys(self._file(position))

    def __call__(self, position: Position) -> Location | None:
        """Return where the chunk is; None if its shard is missing, or lists it as missing."""
        return self.places([position])[0]

    def places(self, positions: Sequence[Position]) -> list[Location | None]:
        """Return where each chunk is; a shard's index is looked up once for consecutive chunks."""
        shards, codecs = self._layout.shards, self._layout.codecs
        if shards is None:
            return [Location(self.key(position)) for position in positions]
        per_shard, most = (
            shards.chunks_per_shard,
            codecs.most_stored_bytes(self._layout.chunk_bytes),
        )
        found: list[Location | None] = []
        shard: Position | None = None
        key, index = "", None
        for position in positions:
            file = self._file(position)
            if file != shard:
                shard = file
                key = self._prefix + self._layout.keys(file)
                index = self._index(shards, self.number(file), key)
            if index is None:
                found.append(None)
                continue
            cell = _flat(tuple(p % n for p, n in zip(position, per_shard, strict=True)), per_shard)
            offset, nbytes = index[cell].tolist()
            if offset != MISSING and nbytes > most:
                raise self._damaged(key, f"chunk {position} cannot have {nbytes} bytes")
            if 2**62 <= offset < MISSING:
                raise self._damaged(key, f"chunk {position} cannot be at byte {offset}")
            found.append(None if offset == MISSING else Location(key, offset, nbytes))
        return found

    def run(self, first: int, last: int) -> tuple[str, ShardIndex] | None:
        """Return the shard of chunks ``first:last`` along the first axis, and where each is in it.

        The array must not be divided along other axes. Returns None if the chunks are in several
        shards, or their shard is missing.

        Args:
            first: The first chunk.
            last: The end.
        """
        shards = self._layout.shards
        assert shards is not None
        count = shards.chunks_per_shard[0]
        shard = first // count
        if (last - 1) // count != shard:
            return None
        key = self.key((first, *[0] * (len(self._chunk_counts) - 1)))
        index = self._index(shards, shard, key)
        return None if index is None else (key, index[first - shard * count : last - shard * count])

    def _file(self, position: Position) -> Position:
        if self._layout.shards is None:
            return position
        per_shard = self._layout.shards.chunks_per_shard
        return tuple(at // count for at, count in zip(position, per_shard, strict=True))

    def _index(self, shards: ShardLayout, number: int, key: str) -> ShardIndex | None:
        index = self._indexes.get(number)
        if index is None:
            size = shards.index_bytes
            raw = self._store.fetch(key, new_memory, -size if shards.index_at_end else 0, size)
            if raw is None:
                return None
            if shards.index_checksum:
                try:
                    verify_checksum(raw[:-4], raw[-4:])
                except BadChunk as error:
                    raise self._damaged(key, str(error)) from error
                raw = raw[:-4]
            index = raw.view("<u8").reshape(-1, 2)
            self._indexes.put(number, index)
        return index

    def _damaged(self, key: str, why: str) -> SourceError:
        name = self._store.name(key)
        return SourceError(f"the index of shard {name} is damaged ({why}): restore the file")


def _flat(position: Position, counts: tuple[int, ...]) -> int:
    number = 0
    for at, count in zip(position, counts, strict=True):
        number = number * count + at
    return number


@dataclass(frozen=True, slots=True)
class MissingChunks:
    """The handling of chunks of one array that are not stored.

    Attributes:
        store: Where the array is stored.
        metadata_key: The object that holds the array's metadata.
        refused: Whether a missing chunk is an error instead of the fill value.
    """

    store: ByteStore
    metadata_key: str
    refused: bool = False

    def report(self, key: str) -> None:
        """Report that the chunk in ``key`` is missing: an error if every chunk must be stored."""
        if self.refused:
            raise SourceError(
                f"there is no chunk {self.store.name(key)}, and missing='error' was passed: "
                "restore it from a copy, or use missing='fill' to read fill values there"
            )

    def verify(self) -> None:
        """Raise ``SourceError`` if the array is gone: deleted, unmounted, or no longer served.

        Called once for each read with missing chunks, after them: if the metadata is found then,
        the store was there when the chunks were not, and fill values are right.
        """
        if self.store.fetch(self.metadata_key, new_memory) is None:
            raise SourceError(
                f"{self.store.name(self.metadata_key)} is gone, so the array's missing chunks are "
                "not fill values: check that the storage is mounted and the store still exists"
            )
