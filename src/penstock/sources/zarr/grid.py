"""Which chunks hold a range of samples, and which part of each goes where: plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """Put ``inside`` of the chunk at ``place`` in the grid to ``target`` of the output."""

    place: tuple[int, ...]
    inside: Slices
    target: Slices
    whole: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """A shape cut into chunks, with samples along one of its axes.

    >>> grid = Grid(shape=(10, 6), chunks=(4, 6), axis=0)
    >>> [(read.place, read.inside[0], read.whole) for read in grid.reads(3, 8)]
    [((0, 0), slice(3, 4, None), False), ((1, 0), slice(0, 4, None), True)]
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    axis: int

    @property
    def samples_per_chunk(self) -> int:
        """Length of a chunk along the axis of samples."""
        return self.chunks[self.axis]

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))

    def reads(self, start: int, stop: int) -> Iterator[ChunkRead]:
        """The chunks that hold samples ``start:stop``, in storage order."""
        spans = [
            _spans(start, stop, chunk) if axis == self.axis else _spans(0, size, chunk)
            for axis, (size, chunk) in enumerate(zip(self.shape, self.chunks, strict=True))
        ]
        for parts in product(*spans):
            inside = tuple(part[1] for part in parts)
            whole = all(s.stop - s.start == c for s, c in zip(inside, self.chunks, strict=True))
            yield ChunkRead(tuple(p[0] for p in parts), inside, tuple(p[2] for p in parts), whole)


def _spans(start: int, stop: int, chunk: int) -> list[tuple[int, slice, slice]]:
    """Along one axis: chunk number, part inside the chunk, part of the output."""
    if stop <= start:
        return []
    spans = []
    for number in range(start // chunk, -(-stop // chunk)):
        first, last = max(start, number * chunk), min(stop, (number + 1) * chunk)
        inside = slice(first - number * chunk, last - number * chunk)
        spans.append((number, inside, slice(first - start, last - start)))
    return spans
