"""Sources made of sources: one after the other, side by side, or a part of one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number
from penstock.errors import PlanError, SourceError
from penstock.fingerprints import digest
from penstock.sources.base import Arrays, Field, MappedSource, Source
from penstock.sources.requests import check_range, checked_indices, destinations


def view_of(source: Source, start: int, stop: int) -> Arrays | None:
    """Samples ``start:stop`` of any source in place; None where that cannot be."""
    return source.view(start, stop) if isinstance(source, MappedSource) else None


def check_source(source: object) -> None:
    """Refuse what is not a source."""
    if not isinstance(source, Source):
        raise SourceError(
            f"{type(source).__name__} is not a source: make one of it with open_source"
        )


def in_flight_of(sources: Iterable[Source]) -> int | None:
    """Reads that the farthest of some sources likes at once; None where all are local."""
    likes = [getattr(source, "in_flight", None) for source in sources]
    return max((like for like in likes if like is not None), default=None)


def seams_of(source: Source) -> list[int]:
    """Places where a source's samples do not follow each other: between files, across a gap.

    A sample of several consecutive rows must not reach over one. A source without the attribute
    ``seams`` has none.

    >>> from penstock.sources.memory import MemorySource
    >>> seams_of(ConcatenatedSource([MemorySource(np.arange(3)), MemorySource(np.arange(5))]))
    [3]
    """
    return list(getattr(source, "seams", ()))


class ConcatenatedSource:
    """The samples of several sources with the same fields, one source after the other.

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
        for source in sources:
            check_source(source)
        self._sources: list[Source] = list(sources)
        self.in_flight = in_flight_of(self._sources)
        self._fields = dict(sources[0].fields)
        for number, source in enumerate(sources):
            if dict(source.fields) != self._fields:
                raise SourceError(
                    f"source {number} has fields {dict(source.fields)}, the first {self._fields}: "
                    "only sources with the same fields can be concatenated"
                )
        self._ends = list(accumulate(len(source) for source in sources))

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> shape and dtype of one sample."""
        return self._fields

    @property
    def block_samples(self) -> int:
        """The longest block of the sources."""
        return max(source.block_samples for source in self._sources)

    def __len__(self) -> int:
        return self._ends[-1]

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
        """Identity of the data: those of the sources, in order."""
        return digest(["concatenated", *(s.fingerprint() for s in self._sources)], [])

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``."""
        check_range(len(self), start, stop)
        rows = dict(destinations(self._fields, out, stop - start))
        for number, first, last in self._parts(start, stop):
            begin = self._begin(number)
            part = {name: each[first - start : last - start] for name, each in rows.items()}
            self._sources[number].read(first - begin, last - begin, part)

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples."""
        chosen = checked_indices(len(self), indices)
        rows = dict(destinations(self._fields, out, len(chosen)))
        owners = np.searchsorted(self._ends, chosen, side="right")
        for number in np.unique(owners).tolist():
            places = np.flatnonzero(owners == number)
            part = {n: np.empty((len(places), *a.shape[1:]), a.dtype) for n, a in rows.items()}
            self._sources[number].take(chosen[places] - self._begin(number), part)
            for name, taken in part.items():
                rows[name][places] = taken

    def view(self, start: int, stop: int) -> Arrays | None:
        """Samples ``start:stop`` in place, where they are in one mapped source."""
        check_range(len(self), start, stop)
        parts = list(self._parts(start, stop))
        if len(parts) != 1:
            return None
        number, begin = parts[0][0], self._begin(parts[0][0])
        return view_of(self._sources[number], start - begin, stop - begin)

    def _begin(self, number: int) -> int:
        return self._ends[number - 1] if number else 0

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Source number and its part of ``start:stop``, counted over all sources."""
        while start < stop:
            number = bisect_right(self._ends, start)
            last = min(stop, self._ends[number])
            yield number, start, last
            start = last


class ZippedSource:
    """Fields of several sources of the same length, side by side.

    A source with one unnamed field gets the name it is given here; named fields keep theirs.

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
                raise SourceError(f"sources must be named by strings, got {name!r}")
        lengths = {name: len(source) for name, source in sources.items()}
        if len(set(lengths.values())) != 1:
            raise SourceError(f"only sources of the same length can be zipped, got {lengths}")
        self._sources = dict(sources)
        self.in_flight = in_flight_of(self._sources.values())
        self._length = next(iter(lengths.values()))
        self._owners: dict[str, tuple[str, str]] = {}
        for given, source in sources.items():
            for field in source.fields:
                name = field or given
                if name in self._owners:
                    raise SourceError(
                        f"two of the zipped sources have a field {name!r}: give them other names"
                    )
                self._owners[name] = (given, field)

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> shape and dtype of one sample."""
        return {name: self._sources[s].fields[f] for name, (s, f) in self._owners.items()}

    @property
    def block_samples(self) -> int:
        """The longest block of the sources."""
        return max(source.block_samples for source in self._sources.values())

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"ZippedSource({self._sources})"

    @property
    def seams(self) -> list[int]:
        """Where any of the sources has one."""
        return sorted({seam for source in self._sources.values() for seam in seams_of(source)})

    def fingerprint(self) -> str:
        """Identity of the data: those of the sources and their names."""
        prints = {name: source.fingerprint() for name, source in self._sources.items()}
        return digest(["zipped", prints], [])

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``."""
        check_range(self._length, start, stop)
        for name, part in self._shares(out, stop - start):
            self._sources[name].read(start, stop, part)

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples."""
        chosen = checked_indices(self._length, indices)
        for name, part in self._shares(out, len(chosen)):
            self._sources[name].take(chosen, part)

    def view(self, start: int, stop: int) -> Arrays | None:
        """Samples ``start:stop`` in place, where every source can show them."""
        check_range(self._length, start, stop)
        views = {}
        for name, source in self._sources.items():
            view = view_of(source, start, stop)
            if view is None:
                return None
            views[name] = view
        return {name: views[s][f] for name, (s, f) in self._owners.items()}

    def _shares(self, out: Arrays, samples: int) -> Iterator[tuple[str, Arrays]]:
        """Each source that is asked for something, with its buffers under its own field names."""
        shares: dict[str, dict[str, npt.NDArray[np.generic]]] = {}
        for name, rows in destinations(self.fields, out, samples):
            source, field = self._owners[name]
            shares.setdefault(source, {})[field] = rows
        return iter(shares.items())


class RangeSource:
    """Samples ``start:stop`` of a source, counted from 0.

    A ``start`` that is a multiple of the source's ``block_samples`` keeps blocks on its chunks;
    any other makes a block touch two of them.

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
        self._source, self._start, self._length = source, start, stop - start
        self.in_flight = in_flight_of([source])

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> shape and dtype of one sample."""
        return self._source.fields

    @property
    def block_samples(self) -> int:
        """That of the source, at most the length of the range."""
        return max(1, min(self._source.block_samples, self._length))

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"RangeSource({self._source!r}, {self._start}, {self._start + self._length})"

    @property
    def seams(self) -> list[int]:
        """Those of the source that are inside of the range."""
        inside = (seam - self._start for seam in seams_of(self._source))
        return [seam for seam in inside if 0 < seam < self._length]

    def fingerprint(self) -> str:
        """Identity of the data: that of the source, and the range."""
        return digest(["range", self._start, self._length, self._source.fingerprint()], [])

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop`` of the range."""
        check_range(self._length, start, stop)
        self._source.read(self._start + start, self._start + stop, out)

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples of the range."""
        self._source.take(checked_indices(self._length, indices) + self._start, out)

    def view(self, start: int, stop: int) -> Arrays | None:
        """Samples ``start:stop`` of the range in place, where the source can show them."""
        check_range(self._length, start, stop)
        return view_of(self._source, self._start + start, self._start + stop)
