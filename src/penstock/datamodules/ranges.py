"""A part of a source, by ranges of its samples: what a split leaves on each side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.fingerprints import digest
from penstock.order import Permutation
from penstock.sources.base import Arrays, Field, MappedSource, Source
from penstock.sources.combine import seams_of
from penstock.sources.requests import check_range, checked_indices

Ranges: TypeAlias = list[tuple[int, int]]

GROUPS = 16  # on the smaller side of a split, at least: fewer would hardly be a shuffle


def split_ranges(samples: int, train: int, block: int, key: int) -> tuple[Ranges, Ranges]:
    """Ranges of the samples to train on and of the others, each cut along groups of samples.

    A group is a block of the storage, unless that leaves too few on a side. Which groups go
    where is a keyed shuffle; one of them is cut in two, so that the sizes are exact.

    >>> split_ranges(10, 7, block=1, key=3)
    ([(0, 1), (1, 2), (2, 3), (6, 7), (7, 8), (8, 9), (9, 10)], [(3, 4), (4, 5), (5, 6)])
    """
    group = max(1, min(block, min(train, samples - train) // GROUPS))
    count = -(-samples // group)
    shuffle, left = Permutation(count, key), train
    sides: tuple[Ranges, Ranges] = ([], [])
    for place in range(count):
        start = shuffle[place] * group
        stop = min(start + group, samples)
        cut = start + min(stop - start, max(0, left))
        left -= cut - start
        for side, (a, b) in zip(sides, ((start, cut), (cut, stop)), strict=True):
            if a < b:
                side.append((a, b))
    return _whole_first(sides[0], group), _whole_first(sides[1], group)


def _whole_first(ranges: Ranges, group: int) -> Ranges:
    """In the order of storage; short ones last, so that the others stay aligned to blocks."""
    return sorted(ranges, key=lambda each: (each[1] - each[0] != group, each))


class SelectedRanges:
    """The samples of a source that are in given ranges, one range after the other.

    >>> from penstock.sources import MemorySource
    >>> part = SelectedRanges(MemorySource(np.arange(10)), [(6, 9), (0, 2)])
    >>> out = np.empty(5, np.int64)
    >>> part.read(0, 5, {"": out})
    >>> out.tolist()
    [6, 7, 8, 0, 1]
    """

    def __init__(self, source: Source, ranges: Ranges) -> None:
        self._source, self._ranges = source, ranges
        self._starts = np.array([a for a, _ in ranges], np.int64)
        lengths = np.array([b - a for a, b in ranges], np.int64)
        self._ends = np.cumsum(lengths)  # of each range, here
        self._shifts = self._starts - (self._ends - lengths)  # from places here to places there

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> shape and dtype of one sample."""
        return self._source.fields

    @property
    def block_samples(self) -> int:
        """As the source has them."""
        return self._source.block_samples

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return f"SelectedRanges({len(self)} samples of {self._source!r})"

    @property
    def seams(self) -> list[int]:
        """Where a range does not continue the one before it, and the source's own seams."""
        gaps = np.flatnonzero(np.diff(self._shifts)) + 1
        found = {int(self._ends[number - 1]) for number in gaps}
        inner = np.array(seams_of(self._source), np.int64)
        for begin, end, shift in zip(
            [0, *self._ends[:-1].tolist()], self._ends.tolist(), self._shifts.tolist(), strict=True
        ):
            here = inner - shift
            found |= set(here[(here >= begin) & (here < end)].tolist())
        return sorted(found - {0})

    def fingerprint(self) -> str:
        """Identity of the data: the source's, and which part of it this is."""
        return digest([self._source.fingerprint(), self._ranges], [])

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``."""
        check_range(len(self), start, stop)
        for first, last in self._pieces(start, stop):
            shift = int(self._shifts[self._range_of(first)])
            rows = {name: array[first - start : last - start] for name, array in out.items()}
            self._source.read(first + shift, last + shift, rows)

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples."""
        places = checked_indices(len(self), indices)
        which = np.searchsorted(self._ends, places, side="right")
        self._source.take(places + self._shifts[which], out)

    def view(self, start: int, stop: int) -> Arrays | None:
        """Samples ``start:stop`` in place, where they are in one piece of a mapped source."""
        check_range(len(self), start, stop)
        if start == stop or not isinstance(self._source, MappedSource):
            return None
        pieces = self._pieces(start, stop)
        shift = int(self._shifts[self._range_of(start)])
        return self._source.view(start + shift, stop + shift) if len(pieces) == 1 else None

    def _range_of(self, place: int) -> int:
        return int(np.searchsorted(self._ends, place, side="right"))

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """``start:stop`` cut at the ends of ranges; what goes on in storage stays in one piece."""
        pieces: list[tuple[int, int]] = []
        number = self._range_of(start)
        while start < stop:
            end = min(stop, int(self._ends[number]))
            if pieces and self._shifts[number] == self._shifts[number - 1]:
                pieces[-1] = (pieces[-1][0], end)
            else:
                pieces.append((start, end))
            start, number = end, number + 1
        return pieces
