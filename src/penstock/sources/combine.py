"""Sources made of other sources: concatenated, zipped, or selected by ranges of samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from penstock.arguments import whole_number
from penstock.errors import PlanError, SourceError
from penstock.fingerprints import digest
from penstock.order import Permutation
from penstock.sources.base import (
    Arrays,
    BaseSource,
    Indices,
    Rows,
    Source,
    chunk_samples_of,
    sample_bytes,
)

Ranges: TypeAlias = list[tuple[int, int]]

SMALLEST_PART_GROUPS = 16  # of a split: fewer would hardly be a shuffle


class ConcatenatedSource(BaseSource):
    """The samples of several sources with the same fields, one source after the other.

    Args:
        sources: A list of at least one source.

    >>> from penstock.sources.memory import MemorySource
    >>> both = ConcatenatedSource([MemorySource(np.arange(3)), MemorySource(np.arange(5))])
    >>> out = {"": np.zeros(4, np.int64)}
    >>> both.read(2, 6, out)
    >>> len(both), out[""].tolist()
    (8, [2, 0, 1, 2])
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        if not isinstance(sources, list | tuple) or not sources:
            raise SourceError(f"sources must be a list of at least one source, got {sources!r}")
        for number, source in enumerate(sources):
            check_source(source)
            if dict(source.fields) != dict(sources[0].fields):
                raise SourceError(
                    f"source {number} has fields {dict(source.fields)}, the first "
                    f"{dict(sources[0].fields)}: only sources with the same fields can be "
                    "concatenated"
                )
        self._sources: list[Source] = list(sources)
        self._ends = list(accumulate(len(source) for source in sources))
        super().__init__(self._ends[-1], sources[0].fields)
        self.in_flight = most_in_flight(self._sources)

    @property
    def block_samples(self) -> int:
        """The longest block of the sources."""
        return max(source.block_samples for source in self._sources)

    @property
    def chunk_samples(self) -> Mapping[str, int]:
        """The longest of the sources, for each field."""
        chunks = [chunk_samples_of(source) for source in self._sources]
        return {name: max(each[name] for each in chunks) for name in self._fields}

    def __repr__(self) -> str:
        return f"ConcatenatedSource({self._sources})"

    @property
    def seams(self) -> list[int]:
        """Where one source ends and the next begins, and the seams within each of them."""
        found = set(self._ends[:-1])
        for number, source in enumerate(self._sources):
            found |= {self._begin(number) + seam for seam in seams_of(source)}
        return sorted(found - {0, len(self)})

    def fingerprint(self) -> str:
        """Return an identity of the data: those of the sources, in order."""
        return digest(["concatenated", *(source.fingerprint() for source in self._sources)], [])

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        for number, first, last in self._parts(start, stop):
            begin = self._begin(number)
            part = {name: rows[first - start : last - start] for name, rows in out.items()}
            self._sources[number].read(first - begin, last - begin, part)

    def _take(self, indices: Indices, out: Arrays) -> None:
        owners = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(owners).tolist():
            positions = np.flatnonzero(owners == number)
            part = {n: np.empty((len(positions), *a.shape[1:]), a.dtype) for n, a in out.items()}
            self._sources[number].take(indices[positions] - self._begin(number), part)
            for name, taken in part.items():
                out[name][positions] = taken

    def _view(self, start: int, stop: int) -> Arrays | None:
        parts = list(self._parts(start, stop))
        if len(parts) != 1:
            return None
        number, begin = parts[0][0], self._begin(parts[0][0])
        return view_of(self._sources[number], start - begin, stop - begin)

    def _begin(self, number: int) -> int:
        return self._ends[number - 1] if number else 0

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each source and its part of ``start:stop``."""
        while start < stop:
            number = bisect_right(self._ends, start)
            last = min(stop, self._ends[number])
            yield number, start, last
            start = last


class ZippedSource(BaseSource):
    """The fields of several sources of the same length, side by side.

    Args:
        sources: Sources by name. The name becomes that of a source's unnamed field; named
            fields keep their names.

    >>> from penstock.sources.memory import MemorySource
    >>> pairs = ZippedSource({"x": MemorySource(np.zeros((3, 2))), "y": MemorySource(np.ones(3))})
    >>> list(pairs.fields), len(pairs)
    (['x', 'y'], 3)
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise SourceError(f"sources must be a dict of sources by name, got {sources!r}")
        for name, source in sources.items():
            check_source(source)
            if not isinstance(name, str):
                raise SourceError(f"names of sources must be strings, got {name!r}")
        lengths = {name: len(source) for name, source in sources.items()}
        if len(set(lengths.values())) != 1:
            raise SourceError(f"only sources of the same length can be zipped, got {lengths}")
        self._sources = dict(sources)
        self._owners: dict[str, tuple[str, str]] = {}  # the source and its field, by our name
        for given, source in sources.items():
            for field in source.fields:
                name = field or given
                if name in self._owners:
                    raise SourceError(f"two zipped sources have a field {name!r}: rename one")
                self._owners[name] = (given, field)
        fields = {name: sources[s].fields[f] for name, (s, f) in self._owners.items()}
        super().__init__(next(iter(lengths.values())), fields)
        self.in_flight = most_in_flight(self._sources.values())

    @property
    def block_samples(self) -> int:
        """The block of the widest source: coarse chunks of labels do not enlarge it."""
        return max(self._sources.values(), key=sample_bytes).block_samples

    @property
    def chunk_samples(self) -> Mapping[str, int]:
        """Samples of each field that are decoded together; 0 for one that is read in place."""
        chunks = {given: chunk_samples_of(source) for given, source in self._sources.items()}
        return {name: chunks[given][field] for name, (given, field) in self._owners.items()}

    def __repr__(self) -> str:
        return f"ZippedSource({self._sources})"

    @property
    def seams(self) -> list[int]:
        """The seams of all sources."""
        return sorted({seam for source in self._sources.values() for seam in seams_of(source)})

    def fingerprint(self) -> str:
        """Return an identity of the data: those of the sources and their names."""
        return digest(["zipped", {name: s.fingerprint() for name, s in self._sources.items()}], [])

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        for name, part in self._by_source(out).items():
            self._sources[name].read(start, stop, part)

    def _take(self, indices: Indices, out: Arrays) -> None:
        for name, part in self._by_source(out).items():
            self._sources[name].take(indices, part)

    def _view(self, start: int, stop: int) -> Arrays | None:
        views = {}
        for name, source in self._sources.items():
            view = view_of(source, start, stop)
            if view is None:
                return None
            views[name] = view
        return {name: views[s][f] for name, (s, f) in self._owners.items()}

    def _by_source(self, out: Arrays) -> dict[str, dict[str, Rows]]:
        """Return the buffers of each source that has a field in ``out``, by its own names."""
        shares: dict[str, dict[str, Rows]] = {}
        for name, rows in out.items():
            source, field = self._owners[name]
            shares.setdefault(source, {})[field] = rows
        return shares


class SelectedRanges(BaseSource):
    """The samples of a source that are in given ranges, one range after the other.

    Args:
        source: Any source.
        ranges: Pairs ``(start, stop)`` within the source; at least one.

    >>> from penstock.sources import MemorySource
    >>> part = SelectedRanges(MemorySource(np.arange(10)), [(6, 9), (0, 2)])
    >>> out = np.empty(5, np.int64)
    >>> part.read(0, 5, {"": out})
    >>> out.tolist()
    [6, 7, 8, 0, 1]
    """

    def __init__(self, source: Source, ranges: Ranges) -> None:
        check_source(source)
        self._source, self._ranges = source, ranges
        lengths = np.array([stop - start for start, stop in ranges], np.int64)
        self._ends = np.cumsum(lengths)
        # added to a position here, gives the position in the source
        self._shifts = np.array([start for start, _ in ranges], np.int64) - (self._ends - lengths)
        super().__init__(int(self._ends[-1]), source.fields)
        self.in_flight = most_in_flight([source])

    @property
    def block_samples(self) -> int:
        """That of the source."""
        return self._source.block_samples

    @property
    def chunk_samples(self) -> Mapping[str, int]:
        """Those of the source."""
        return chunk_samples_of(self._source)

    def __repr__(self) -> str:
        return f"SelectedRanges({len(self)} samples of {self._source!r})"

    @property
    def seams(self) -> list[int]:
        """Where a range does not continue the one before it, and the source's own seams."""
        gaps = np.flatnonzero(np.diff(self._shifts))
        found = {int(end) for end in self._ends[gaps]}
        inner, begin = np.array(seams_of(self._source), np.int64), 0
        for end, shift in zip(self._ends.tolist(), self._shifts.tolist(), strict=True):
            here = inner - shift
            found |= set(here[(here >= begin) & (here < end)].tolist())
            begin = end
        return sorted(found - {0})

    def fingerprint(self) -> str:
        """Return an identity of the data: the source's, and the ranges."""
        return digest([self._source.fingerprint(), self._ranges], [])

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        for first, last, shift in self._pieces(start, stop):
            rows = {name: array[first - start : last - start] for name, array in out.items()}
            self._source.read(first + shift, last + shift, rows)

    def _take(self, indices: Indices, out: Arrays) -> None:
        which = np.searchsorted(self._ends, indices, side="right")
        self._source.take(indices + self._shifts[which], out)

    def _view(self, start: int, stop: int) -> Arrays | None:
        pieces = self._pieces(start, stop)
        if len(pieces) != 1:
            return None
        return view_of(self._source, start + pieces[0][2], stop + pieces[0][2])

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return first, last and shift of each part of ``start:stop`` that storage has together.

        Ranges that continue each other in the source are one piece.
        """
        pieces: list[tuple[int, int, int]] = []
        number = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end, shift = min(stop, int(self._ends[number])), int(self._shifts[number])
            if pieces and pieces[-1][2] == shift:
                pieces[-1] = (pieces[-1][0], end, shift)
            else:
                pieces.append((start, end, shift))
            start, number = end, number + 1
        return pieces


class RangeSource(SelectedRanges):
    """Samples ``start:stop`` of a source, counted from 0.

    Args:
        source: Any source.
        start: The first sample. A multiple of the source's ``block_samples`` keeps blocks on
            the chunks of the storage; with any other, each block touches two chunks.
        stop: One past the last sample.

    >>> from penstock.sources.memory import MemorySource
    >>> part = RangeSource(MemorySource(np.arange(10)), 4, 8)
    >>> len(part), part.view(1, 3)[""].tolist()
    (4, [5, 6])
    """

    def __init__(self, source: Source, start: int, stop: int) -> None:
        check_source(source)
        start, stop = whole_number("start", start), whole_number("stop", stop)
        if not 0 <= start <= stop <= len(source):
            raise PlanError(
                f"samples start={start} to stop={stop} are not within the {len(source)} samples "
                f"of {source!r}"
            )
        super().__init__(source, [(start, stop)])
        self._start = start

    @property
    def block_samples(self) -> int:
        """That of the source, at most the length of the range."""
        return max(1, min(self._source.block_samples, self._length))

    def __repr__(self) -> str:
        return f"RangeSource({self._source!r}, {self._start}, {self._start + self._length})"

    def fingerprint(self) -> str:
        """Return an identity of the data: that of the source, and the range."""
        return digest(["range", self._start, self._length, self._source.fingerprint()], [])


def split_ranges(samples: int, train: int, block: int, key: int) -> tuple[Ranges, Ranges]:
    """Return the ranges of ``train`` samples, and those of all others, chosen by a keyed shuffle.

    Groups of samples are shuffled, not single samples. A group is a block of the storage,
    unless that leaves a part with fewer than 16 groups. One group is cut in two, so that the
    sizes are exact.

    Args:
        samples: The number of samples to split.
        train: The size of the first part.
        block: The ``block_samples`` of the source.
        key: Of the shuffle.

    >>> split_ranges(10, 7, block=1, key=3)
    ([(0, 1), (1, 2), (2, 3), (6, 7), (7, 8), (8, 9), (9, 10)], [(3, 4), (4, 5), (5, 6)])
    """
    group = max(1, min(block, min(train, samples - train) // SMALLEST_PART_GROUPS))
    count = -(-samples // group)
    shuffle, left = Permutation(count, key), train
    parts: tuple[Ranges, Ranges] = ([], [])
    for position in range(count):
        start = shuffle[position] * group
        stop = min(start + group, samples)
        cut = start + min(stop - start, max(0, left))
        left -= cut - start
        for part, (a, b) in zip(parts, ((start, cut), (cut, stop)), strict=True):
            if a < b:
                part.append((a, b))
    # in storage order; short ranges last, so that the others stay aligned to blocks
    for part in parts:
        part.sort(key=lambda each: (each[1] - each[0] != group, each))
    return parts


def check_source(source: object) -> None:
    """Raise ``SourceError`` unless this is a source."""
    if not isinstance(source, Source):
        raise SourceError(f"{type(source).__name__} is not a source: convert it with open_source")


def view_of(source: Source, start: int, stop: int) -> Arrays | None:
    """Return samples ``start:stop`` of any source in place, or None if impossible."""
    # not isinstance(source, MappedSource): a protocol check costs more than most views
    view = getattr(source, "view", None)
    return None if view is None else view(start, stop)


def most_in_flight(sources: Iterable[Source]) -> int | None:
    """Return the largest ``in_flight`` of the sources, or None if all of them are local."""
    found = [getattr(source, "in_flight", None) for source in sources]
    return max((count for count in found if count is not None), default=None)


def seams_of(source: Source) -> list[int]:
    """Return the seams of any source; one without the attribute ``seams`` has none.

    >>> from penstock.sources.memory import MemorySource
    >>> seams_of(ConcatenatedSource([MemorySource(np.arange(3)), MemorySource(np.arange(5))]))
    [3]
    """
    return list(getattr(source, "seams", ()))
