"""Mean, deviation and extremes of the fields of a source, in one pass over its samples."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.arguments import flag, whole_number
from penstock.errors import PlanError
from penstock.extras import progress_bar
from penstock.sources.contract import Rows, Source

log = logging.getLogger("penstock")

Values: TypeAlias = npt.NDArray[np.float64]

READ_BYTES = 16 << 20  # read at once, and more where a storage chunk is larger ...
MOST_BYTES = 256 << 20  # ... up to this


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one field: numbers, or arrays with an item for each index of an axis.

    Args:
        mean: The mean of all values that are not NaN.
        std: Their standard deviation (``ddof=0``).
        min: The smallest value, NaN aside.
        max: The largest value, NaN aside.
        count: Values that are not NaN.
        nans: Values that are NaN.
    """

    mean: Any
    std: Any
    min: Any
    max: Any
    count: Any
    nans: Any

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as plain numbers and lists, for JSON."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {name: np.asarray(each).tolist() for name, each in named.items()}


class Moments:
    """Statistics of each row of values that arrive in parts; NaN is left out.

    Parts are merged by Chan's formula, so a mean far from 0 costs no precision.

    >>> moments = Moments()
    >>> moments.add(np.array([[1.0, 2.0]]))
    >>> moments.add(np.array([[3.0, np.nan]]))
    >>> moments.mean.tolist(), moments.std.round(4).tolist(), moments.nans.tolist()
    ([2.0], [0.8165], [1])
    """

    def __init__(self) -> None:
        self.count = self.nans = np.zeros(1, np.int64)
        self._mean = self._sum = self._squares = np.zeros(1)
        self.min: Rows | None = None
        self.max: Rows | None = None

    def add(self, values: Rows) -> None:
        """Add ``values``, a part of each row."""
        floats = values.astype(np.float64, copy=False)
        missing = np.isnan(floats)
        nans = missing.sum(axis=1)
        count = floats.shape[1] - nans
        if nans.any():
            low, high = np.where(missing, np.inf, values), np.where(missing, -np.inf, values)
            floats = np.where(missing, 0, floats)
        else:
            low = high = values
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            total = floats.sum(axis=1)
            mean = total / np.maximum(count, 1)
            distances = floats - mean[:, None]
            if nans.any():
                distances[missing] = 0
            squares = np.einsum("ij,ij->i", distances, distances)
            both, apart = self.count + count, mean - self._mean
            share = count / np.maximum(both, 1)
            self._squares = self._squares + squares + np.square(apart) * (self.count * share)
            self._mean = self._mean + apart * share
            self._sum = self._sum + total
        self.count, self.nans = both, self.nans + nans
        least, most = low.min(axis=1), high.max(axis=1)
        self.min = least if self.min is None else np.minimum(self.min, least)
        self.max = most if self.max is None else np.maximum(self.max, most)

    @property
    def mean(self) -> Values:
        """The mean of each row; NaN without values."""
        with np.errstate(invalid="ignore", divide="ignore"):
            # with infinite values, the plain sum is right, and the merged mean is not
            mean = np.where(np.isfinite(self._sum), self._mean, self._sum / self.count)
            return np.where(self.count > 0, mean, np.nan)

    @property
    def std(self) -> Values:
        """The standard deviation of each row (``ddof=0``); NaN without values."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sqrt(self._squares / self.count)

    def statistics(self, *, single: bool) -> Statistics:
        """Return the statistics; ``single`` for numbers instead of arrays."""
        empty = self.count == 0
        low, high = np.asarray(self.min), np.asarray(self.max)
        if empty.any():
            low, high = np.where(empty, np.nan, low), np.where(empty, np.nan, high)
        found = [self.mean, self.std, low, high, self.count, self.nans]
        return Statistics(*(each[0].item() if single else each for each in found))


def statistics_of(
    source: Source, dims: Mapping[str, tuple[str, ...]], per: int | str | None, progress: bool
) -> dict[str, Statistics]:
    """Return the statistics of each numeric field.

    Args:
        source: Any source.
        dims: The names of the axes of its fields.
        per: An axis of a sample, by number or name, to have statistics for each of its indices.
        progress: Whether to show a progress bar on a terminal.
    """
    if not len(source):
        raise PlanError("statistics need at least 1 sample, got an empty source")
    fields = {
        name: each
        for name, each in source.fields.items()
        if each.dtype.kind in "biuf" and not each.ragged  # zeros of a sparse matrix are not stored
    }
    left = [name for name in source.fields if name not in fields]
    if not fields:
        raise PlanError(f"statistics need a field of numbers, got {dict(source.fields)}")
    if left:
        log.info("no statistics of the fields %s: they are ragged, or not real numbers", left)
    axes = {name: _axis(per, len(each.shape), dims.get(name, ())) for name, each in fields.items()}
    if per is not None and all(axis is None for axis in axes.values()):
        shapes = {name: each.shape for name, each in fields.items()}
        raise PlanError(
            f"no field has the axis per={per!r}: shapes {shapes}, dimensions {dict(dims)}"
        )
    found = {name: Moments() for name in fields}
    step = read_samples(source, sum(each.nbytes for each in fields.values()))
    out = {name: np.empty((step, *each.shape), each.dtype) for name, each in fields.items()}
    show = None if flag("progress", progress) else False
    with progress_bar("statistics", len(source), show) as advance:
        for start in range(0, len(source), step):
            stop = min(len(source), start + step)
            source.read(start, stop, out)
            for name, rows in out.items():
                found[name].add(_by_row(rows[: stop - start], axes[name]))
            advance(stop - start)
    return {name: found[name].statistics(single=axes[name] is None) for name in fields}


def read_samples(source: Source, sample_bytes: int) -> int:
    """Return how many samples to read at once: whole storage blocks, as memory allows."""
    block, size = source.block_samples, max(1, sample_bytes)
    whole = max(block, READ_BYTES // size // block * block)
    return max(1, min(len(source), whole, MOST_BYTES // size))


def _axis(per: int | str | None, axes: int, dims: tuple[str, ...]) -> int | None:
    """Return the number of the axis, or None if a sample does not have it."""
    if per is None or isinstance(per, str):
        return dims.index(per) if per in dims else None
    number = whole_number("per", per)
    return number % axes if -axes <= number < axes else None


def _by_row(rows: Rows, axis: int | None) -> Rows:
    if axis is None:
        return rows.reshape(1, -1)
    return np.moveaxis(rows, axis + 1, 0).reshape(rows.shape[axis + 1], -1)
