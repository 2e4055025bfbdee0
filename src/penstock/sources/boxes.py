"""Where the samples of a composed source are stored: the interface between verbs and readers.

A sample of a composed source is, for each output, a box of one stored array: some of its rows, and
a range along each other axis. This module has the records for that; `penstock.sources.verbs`
computes them, and `penstock.sources.base.ComposedSource` (or the streaming engine) reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from operator import sub
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.sources.contract import Field, Indices, Source, Sparse

MOST_BORDERS = 1 << 24  # listed one by one, 8 bytes each; more are replaced by regular ones


# -- what is stored


@dataclass(frozen=True, slots=True)
class Leaf:
    """One stored array: a field of a source that is not composed of others.

    Args:
        source: The source to read from: ``source.read(start, stop, {field: out})``.
        field: The name of the array in ``source``.
        chunks: The shape that storage decodes together: rows, then the other axes. If nothing is
            decoded: as many whole rows as are cheap to read together.
    """

    source: Source
    field: str
    chunks: tuple[int, ...]

    @property
    def in_place(self) -> bool:
        """Whether ``source.view`` returns rows without a read, so that chunks cost nothing."""
        view = getattr(self.source, "view", None)
        few = min(self.rows, 2 * self.source.block_samples + 1)
        return view is not None and view(0, few) is not None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.source)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.source.fields[self.field].shape

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the items."""
        return self.source.fields[self.field].dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.source.fields[self.field].nbytes

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one decoded chunk; 0 where nothing is decoded."""
        return 0 if self.in_place else prod(self.chunks) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Output:
    """One field of a composed sample: ``steps`` rows, and the part ``inner`` of each.

    The field's shape is ``steps + inner``.

    Args:
        leaves: The numbers of the leaves that it reads from: one, or one for each concatenated
            part.
        steps: The number of rows, by axis of the sample; ``()`` for a single row.
        inner: The part of a row: smaller than the row if ``cut``, else the whole row.
        dtype: The dtype of the items.
        dims: The names of the axes of ``inner``, "" for an axis without a name.
        cut: Whether the output is a patch: `Located.corner` is then where it begins in a row.
        static: Whether every sample has the same single row (rate 0 of `zip_sources`).
        rate: Rows per sample if that is less than one: 1/2 is one row for two samples.
        pitch: Rows from a sample to the next one of the same run; None if it varies.
        ragged: Whether a row is any number of items of the shape ``inner``.
        sparse: `Field.sparse` of the stored field.
    """

    leaves: tuple[int, ...]
    steps: tuple[int, ...]
    inner: tuple[int, ...]
    dtype: np.dtype[np.generic]
    dims: tuple[str, ...] = ()
    cut: bool = False
    static: bool = False
    rate: Fraction = Fraction(1)
    pitch: int | None = 1
    ragged: bool = False
    sparse: Sparse | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample of the output."""
        return self.steps + self.inner

    @property
    def field(self) -> Field:
        """Shape and dtype of one sample of the output."""
        return Field(self.shape, self.dtype, self.ragged, self.sparse)

    @property
    def store(self) -> int:
        """The first leaf. Outputs with the same store read the same rows, which are held once."""
        return self.leaves[0]

    @property
    def nbytes(self) -> int:
        """Bytes of one sample of the output."""
        return prod(self.shape) * self.dtype.itemsize


# -- where samples are


@dataclass(frozen=True, slots=True)
class Located:
    """Where one output of n samples is stored.

    Args:
        leaf: ``(n,)``: the number of the leaf in `ComposedSource.leaves`; all rows of a sample are
            in one leaf.
        rows: ``(n, *steps)``: rows of that leaf.
        corner: ``(n, axes)``: the first item along each other axis of the row; zeros unless
            `Output.cut`.
    """

    leaf: Indices
    rows: Indices
    corner: Indices

    def joined(self, other: Located) -> Located:
        """Return the samples of both, one after the other."""
        pairs = ((self.leaf, other.leaf), (self.rows, other.rows), (self.corner, other.corner))
        return Located(*(np.concatenate(pair) for pair in pairs))


class Span(NamedTuple):
    """Rows ``start:stop`` of a leaf, and the part ``low:high`` of each row (the canvas).

    Args:
        leaf: The number of the leaf.
        start: The first row.
        stop: The end of the rows.
        low: The first item along each other axis.
        high: The end along each other axis; for whole rows ``low`` is 0 and ``high`` their shape.
    """

    leaf: int
    start: int
    stop: int
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that holds the span: rows, then the canvas."""
        return (self.stop - self.start, *map(sub, self.high, self.low))


class Places(NamedTuple):
    """Where one output of n samples is in the held spans of its store.

    Args:
        index: ``(n, *steps)``: rows, numbered through all spans of the store in their order.
        corner: ``(n, axes)``: as in `Located`; in its span the part begins at ``corner - low``.
    """

    index: Indices  # type: ignore[assignment]  # a tuple has a method of this name
    corner: Indices


# -- borders in the numbering of samples


class Borders:
    """Borders ``0 = b[0] < b[1] < ... < b[n] = size`` between n pieces of ``range(size)``.

    Regular borders take no memory: they are stored as stretches, each with its first border and
    the step between its borders.

    Args:
        firsts: The first border of each stretch, ascending from 0.
        steps: The distance between borders in each stretch; the last piece may be shorter.
        size: The end.

    >>> borders = Borders([0, 10], [4, 100], 15)
    >>> borders.tolist(), len(borders)
    ([0, 4, 8, 10, 15], 4)
    >>> [each.tolist() for each in borders.around(np.array([3, 4, 12]))]
    [[0, 4, 10], [4, 8, 15]]
    """

    def __init__(self, firsts: npt.ArrayLike, steps: npt.ArrayLike, size: int) -> None:
        self.firsts = np.asarray(firsts, np.int64)
        self.steps, self.size = np.asarray(steps, np.int64), size
        self._ends = np.append(self.firsts[1:], size)

    @classmethod
    def every(cls, size: int, step: int) -> Borders:
        """Return borders at every multiple of ``step``."""
        return cls([0] if size else [], [max(1, step)] if size else [], size)

    @classmethod
    def at(cls, borders: npt.ArrayLike, size: int) -> Borders:
        """Return borders at 0, at these positions and at ``size``; repeated ones count once."""
        listed = np.unique(np.asarray(borders, np.int64))
        listed = listed[(listed > 0) & (listed < size)]
        firsts = np.concatenate([[0], listed]) if size else listed
        return cls(firsts, np.full(len(firsts), max(1, size)), size)

    @classmethod
    def join(cls, parts: Iterable[Borders]) -> Borders:
        """Return the borders of several ranges, one range after the other."""
        firsts, steps, size = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
        for part in parts:
            firsts.append(part.firsts + size)
            steps.append(part.steps)
            size += part.size
        return cls(np.concatenate(firsts), np.concatenate(steps), size)

    @property
    def _lengths(self) -> Indices:
        return self._ends[: len(self.firsts)] - self.firsts

    @property
    def _counts(self) -> Indices:
        return -(-self._lengths // self.steps)

    def __len__(self) -> int:
        """Return the number of pieces."""
        return int(self._counts.sum())

    def around(self, samples: Indices) -> tuple[Indices, Indices]:
        """Return the begin and the end of the piece that holds each of these samples."""
        if len(self.firsts) == 1:
            begin = samples - samples % self.steps[0]
            return begin, np.minimum(begin + self.steps[0], self.size)
        stretch = self.firsts.searchsorted(samples, side="right") - 1
        first, step = self.firsts[stretch], self.steps[stretch]
        begin = samples - (samples - first) % step
        return begin, np.minimum(begin + step, self._ends[stretch])

    def array(self) -> Indices:
        """Return all borders, from 0 to ``size``."""
        counts = self._counts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.append(
            np.repeat(self.firsts, counts) + within * np.repeat(self.steps, counts), self.size
        )

    def tolist(self) -> list[int]:
        """Return all borders as a list."""
        return self.array().tolist()  # type: ignore[no-any-return]

    def typical(self) -> int:
        """Return the median length of the pieces; 1 if there are none."""
        if not len(self.firsts):
            return 1
        counts, lengths = self._counts, self._lengths
        last = lengths - (counts - 1) * self.steps  # the last piece of each stretch is shorter
        sizes = np.concatenate([self.steps, last])
        weights = np.concatenate([counts - 1, counts > 0])
        order = np.argsort(sizes, kind="stable")
        half = np.searchsorted(np.cumsum(weights[order]), (int(weights.sum()) + 1) // 2)
        return int(sizes[order][half])

    def mapped(
        self,
        position: Callable[[Indices], Indices],
        size: int,
        *,
        times: int = 1,
        over: int = 1,
        seams: Indices | None = None,
    ) -> Borders:
        """Return the borders in another numbering.

        Args:
            position: Maps borders of this numbering to the other one; never descending.
            size: The end of the other numbering.
            times: A stretch stays regular if ``step * times`` is a multiple of ``over``.
            over: The step in the other numbering is ``step * times // over``.
            seams: Positions; a stretch that has one of them inside does not stay regular.
        """
        counts = self._counts
        regular = (self.steps * times) % over == 0
        if seams is not None:
            before = np.searchsorted(seams, self.firsts, "right")
            regular &= np.searchsorted(seams, self._ends) <= before
        listed = np.where(regular | (counts == 1), 1, counts)
        if listed.sum() > MOST_BORDERS:  # only the speed of reads depends on exact borders
            return Borders.every(size, max(1, self.typical() * times // over))
        steps = np.where(regular & (counts > 1), self.steps * times // over, max(1, size))
        within = np.arange(listed.sum()) - np.repeat(np.cumsum(listed) - listed, listed)
        firsts = position(np.repeat(self.firsts, listed) + within * np.repeat(self.steps, listed))
        steps = np.repeat(steps, listed)
        # of several borders at one position, the last one is kept
        keep = np.append(firsts[1:] != firsts[:-1], True) if len(firsts) else np.zeros(0, bool)
        keep &= firsts < size
        return Borders(firsts[keep], np.maximum(1, steps[keep]), size)
