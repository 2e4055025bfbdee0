"""Which chunks hold a range of samples, and which part of each goes where: plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

Slices = tuple[slice, ...]
Crop = tuple[tuple[int, int], ...]


class Span(NamedTuple):
    """Along one axis: part ``inside`` of chunk ``number`` is part ``target`` of the output."""

    number: int
    inside: slice
    target: slice


Spans = tuple[Span, ...]


class ChunkRead(NamedTuple):
    """Put ``inside`` of the chunk at ``place`` in the grid to ``target`` of the output."""

    place: tuple[int, ...]
    inside: Slices
    target: Slices
    whole: bool


def sample_shape(shape: tuple[int, ...], axis: int, crop: Crop | None) -> tuple[int, ...]:
    """The shape of one sample, within the crop.

    >>> sample_shape((10, 6, 4), 0, ((0, 10), (0, 2), (0, 4)))
    (2, 4)
    """
    sizes = shape if crop is None else tuple(last - first for first, last in crop)
    return sizes[:axis] + sizes[axis + 1 :]


class Grid:
    """A shape cut into chunks, with samples along one of its axes.

    Of the other axes only a ``crop`` (first, last) is wanted; that of samples is not cropped.

    >>> grid = Grid(shape=(10, 6), chunks=(4, 6), axis=0)
    >>> [(read.place, read.inside[0], read.whole) for read in grid.reads(3, 8)]
    [((0, 0), slice(3, 4, None), False), ((1, 0), slice(0, 4, None), True)]
    """

    def __init__(
        self, shape: tuple[int, ...], chunks: tuple[int, ...], axis: int, crop: Crop | None = None
    ) -> None:
        self.samples_per_chunk = chunks[axis]
        self.chunk_counts = tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
        self._chunks, self._axis = chunks, axis
        self._wanted = crop or tuple((0, n) for n in shape)
        # the other axes are the same for every read: the first one lists their chunks, once.
        # Not here: opening an array must not cost more where it has more chunks.
        self._others: tuple[list[Spans], list[Spans]] | None = None
        self._one_per_sample = all(
            first < last and first // chunk == (last - 1) // chunk
            for (first, last), chunk in self._other_axes()
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_others": None}

    def reads(self, start: int, stop: int) -> Iterator[ChunkRead]:
        """The chunks that hold samples ``start:stop``, in storage order."""
        others = self._others
        if others is None:
            spans = [spans_of(*part, c) for part, c in self._other_axes()]
            others = list(product(*spans[: self._axis])), list(product(*spans[self._axis :]))
            self._others = others
        along = spans_of(start, stop, self.samples_per_chunk)
        for before, middle, after in product(others[0], along, others[1]):
            yield self._read((*before, middle, *after))

    def one_read(self, start: int, stop: int) -> ChunkRead | None:
        """The read of the one chunk that holds all of them; None where it takes several."""
        if (stop - 1) // self.samples_per_chunk != start // self.samples_per_chunk:
            return None
        return next(self.reads(start, stop), None) if self._one_per_sample else None

    def place(self, number: int) -> tuple[int, ...]:
        """Where in the grid the chunk is that comes at ``number`` in storage order.

        >>> Grid(shape=(10, 6), chunks=(4, 2), axis=0).place(4)
        (1, 1)
        """
        place = []
        for count in reversed(self.chunk_counts):  # numpy's unravel_index ends at 2**63
            number, at = divmod(number, count)
            place.append(at)
        return tuple(reversed(place))

    def _other_axes(self) -> list[tuple[tuple[int, int], int]]:
        """What is wanted of each axis but that of samples, and its chunk length."""
        axes = list(zip(self._wanted, self._chunks, strict=True))
        return axes[: self._axis] + axes[self._axis + 1 :]

    def _read(self, spans: Spans) -> ChunkRead:
        place, inside, target = zip(*spans, strict=True)
        sizes = zip(inside, self._chunks, strict=True)
        whole = all(part.stop - part.start == chunk for part, chunk in sizes)
        return ChunkRead(place, inside, target, whole)


def spans_of(start: int, stop: int, chunk: int) -> list[Span]:
    """The parts of ``start:stop`` that lie in each chunk along one axis.

    >>> spans_of(3, 5, 4)[1]
    Span(number=1, inside=slice(0, 1, None), target=slice(1, 2, None))
    """
    if stop <= start:
        return []
    spans = []
    for number in range(start // chunk, -(-stop // chunk)):
        first, last = max(start, number * chunk), min(stop, (number + 1) * chunk)
        inside = slice(first - number * chunk, last - number * chunk)
        spans.append(Span(number, inside, slice(first - start, last - start)))
    return spans
