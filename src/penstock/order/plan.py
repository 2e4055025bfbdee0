"""The plan, which is everything decided before the first byte is read, and skipped positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.order.orders import Order, at_with_passes, places_of, positions_of
from penstock.order.permutation import STRIDE, Indices
from penstock.order.steps import Cursor, Steps

Range = tuple[int, int, int]  # epoch, start, stop


class Skips:
    """Ranges of positions that are left out: ``(epoch, start, stop)``, sorted and merged.

    Skips are in positions, never in steps: with a different number of ranks, a step is a different
    set of positions. Adding a range again has no effect.

    The positions that are left are *kept*; they are numbered from 0 in each epoch. `Steps` and a
    `Cursor` count kept positions, states and users count positions of the order.

    Args:
        ranges: Each ``(epoch, start, stop)``.

    >>> skips = Skips([(3, 20, 40), (3, 30, 50)])
    >>> skips.ranges, skips.original(3, np.array([19, 20])), skips.kept(3, np.array([60]))
    (((3, 20, 50),), array([19, 50]), array([30]))
    """

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        merged: list[Range] = []
        for epoch, start, stop in sorted(ranges):
            if start >= stop:
                continue
            before = merged[-1] if merged else (-1, 0, 0)
            if before[0] == epoch and start <= before[2]:
                merged[-1] = (epoch, before[1], max(before[2], stop))
            else:
                merged.append((epoch, start, stop))
        self.ranges = tuple(merged)
        self._holes = {epoch: self._holes_of(epoch) for epoch, _, _ in merged}

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, epoch: object) -> bool:
        """Return whether any position of this epoch is left out."""
        return epoch in self._holes

    def union(self, ranges: Iterable[Range]) -> Skips:
        """Return these skips with more ranges."""
        return Skips([*self.ranges, *ranges])

    def ahead_of(self, cursor: Cursor) -> list[Range]:
        """Return the ranges, without what comes before a cursor in positions of the order."""
        return [
            (epoch, max(start, cursor.position) if epoch == cursor.epoch else start, stop)
            for epoch, start, stop in self.ranges
            if epoch >= cursor.epoch
        ]

    def size(self, epoch: int, size: int) -> int:
        """Return how many of the first ``size`` positions of an epoch are kept."""
        return int(self.kept(epoch, np.array([size]))[0])

    def sizes(self, order: Order) -> Callable[[int], int] | None:
        """Return the ``sizes`` that `Steps` needs; None if all epochs have the same size."""
        if not self and not hasattr(order, "places"):
            return None
        return lambda epoch: self.size(epoch, places_of(order, epoch))

    def kept(self, epoch: int, positions: Indices) -> Indices:
        """Return how many positions before each of these are kept."""
        if epoch not in self._holes:
            return positions
        starts, stops, before = self._holes[epoch]
        hole = np.searchsorted(starts, positions, side="right")  # the holes that begin before it
        inside = np.minimum(positions, stops[hole - 1]) - starts[hole - 1]
        return positions - np.where(hole > 0, before[hole - 1] + inside, 0)

    def original(self, epoch: int, kept: Indices) -> Indices:
        """Return the positions of the order for these kept positions: the inverse of `kept`."""
        if epoch not in self._holes:
            return kept
        starts, _, before = self._holes[epoch]
        shift: Indices = before[np.searchsorted(starts - before[:-1], kept, side="right")]
        return kept + shift

    def left_out(self, epoch: int, positions: Indices) -> npt.NDArray[np.bool_]:
        """Return whether each position is left out."""
        return np.not_equal(self.original(epoch, self.kept(epoch, positions)), positions)

    def runs(self, epoch: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the kept positions ``begin`` to ``end`` as ranges of positions of the order."""
        if begin >= end:
            return []
        starts, _, before = self._holes.get(epoch, _NO_HOLES)
        seams = (starts - before[:-1]).tolist()  # the kept position after each hole
        cuts = [begin, *(seam for seam in seams if begin < seam < end), end]
        firsts = self.original(epoch, np.array(cuts[:-1])).tolist()
        return [(first, first + b - a) for first, a, b in zip(firsts, cuts, cuts[1:], strict=False)]

    def to_order(self, cursor: Cursor) -> Cursor:
        """Return a cursor in positions of the order, for one in kept positions."""
        return Cursor(
            cursor.epoch, int(self.original(cursor.epoch, np.array([cursor.position]))[0])
        )

    def to_kept(self, cursor: Cursor) -> Cursor:
        """Return a cursor in kept positions, for one in positions of the order."""
        return Cursor(cursor.epoch, self.size(cursor.epoch, cursor.position))

    def _holes_of(self, epoch: int) -> tuple[Indices, Indices, Indices]:
        """Return starts and stops, and the positions left out before each range and in all."""
        own = np.array([hole[1:] for hole in self.ranges if hole[0] == epoch], np.int64)
        before: Indices = np.concatenate([[0], np.cumsum(own[:, 1] - own[:, 0])])
        return own[:, 0], own[:, 1], before


_NO_HOLES: Final = np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(1, np.int64)
NO_SKIPS: Final = Skips()


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a sample.

    Args:
        epoch: The epoch.
        position: The position in the epoch's order.
        step: The step of the epoch that delivers it; None if it is skipped or dropped.
        rank: The rank that gets it; None without a step.
        row: The row of that rank's batch; None without a step.
    """

    epoch: int
    position: int
    step: int | None = None
    rank: int | None = None
    row: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One rank's batch.

    Args:
        epoch: The epoch of its samples.
        samples: Their indices in the dataset.
        after: The cursor after the batch.
        passes: The pass of each sample, where that is not the epoch; else None.
    """

    epoch: int
    samples: Indices
    after: Cursor
    passes: Indices | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """An order, cut into one rank's batches.

    Args:
        order: Which sample is at which position.
        steps: Which positions make up a step.
        rank: Whose batches these are.
        skips: Positions that are left out. Steps and cursors count those that are kept.

    >>> from penstock.order.orders import SequentialOrder
    >>> plan = Plan(SequentialOrder(10), Steps(10, batch=2, world=2, drop_last=False), rank=1)
    >>> [batch.samples.tolist() for batch in plan.walk(Cursor(0, 0), steps=4)]
    [[2, 3], [6, 7], [9], [2, 3]]
    """

    order: Order
    steps: Steps
    rank: int = 0
    skips: Skips = NO_SKIPS

    def __post_init__(self) -> None:
        if not isinstance(self.order, Order):
            raise PlanError(f"order must be an Order, got {self.order!r}")
        if not isinstance(self.steps, Steps):
            raise PlanError(f"steps must be Steps, got {self.steps!r}")
        if whole_number("rank", self.rank, minimum=0) >= self.steps.world:
            raise PlanError(f"rank must be in [0, {self.steps.world}), got {self.rank!r}")

    @property
    def batch_limit(self) -> str:
        """The argument that limits a rank's batch, such as ``batch_size=32``."""
        unit, most = self.order.identity().get("cut", ("samples", self.steps.batch))
        return f"{'max_tokens' if unit == 'tokens' else 'batch_size'}={most}"

    def positions(self, cursor: Cursor) -> Indices:
        """Return this rank's batch in the step at ``cursor``, as positions of the order."""
        steps = self.steps.of(cursor.epoch)
        return self.skips.original(cursor.epoch, steps.rank_positions(cursor.position, self.rank))

    def samples(self, cursor: Cursor) -> Indices:
        """Return the samples of this rank in the step at ``cursor``."""
        return self.order.at(cursor.epoch, self.positions(cursor))

    def left_in_chunk(self, cursor: Cursor) -> int:
        """Return the number of batches from ``cursor`` to the end of its chunk."""
        return self.steps.of(cursor.epoch).left_in_chunk(cursor.position)

    def skipping(self, skips: Skips) -> Plan:
        """Return the same plan with other skips."""
        return replace(self, steps=self.steps.skipping(skips, self.order), skips=skips)

    def when(self, epoch: int, sample: int, origin: int = 0) -> list[Occurrence]:
        """Return the occurrences of a sample in an epoch, in chronological order.

        Args:
            epoch: The epoch.
            sample: The sample.
            origin: The kept position that the steps of the epoch are counted from.
        """
        steps, found = self.steps.of(epoch), []
        for position in positions_of(self.order, epoch, sample):
            at = np.array([position])
            place = None
            if not self.skips.left_out(epoch, at)[0]:
                place = steps.locate(int(self.skips.kept(epoch, at)[0]), origin)
            found.append(Occurrence(epoch, position, *place or ()))
        return found

    def walk(self, cursor: Cursor, steps: int) -> Iterator[PlannedBatch]:
        """Yield the next ``steps`` batches, continuing across the ends of epochs.

        Samples are computed for a growing number of batches at once: the first batch is ready
        soon, and later ones take a fraction of its time.
        """
        stride = 1
        while steps > 0:
            left = self.steps.of(cursor.epoch).steps_from(cursor.position)
            batches = self._stride(cursor, min(stride, steps, left))
            yield from batches
            cursor = batches[-1].after
            steps -= len(batches)
            stride = min(2 * stride, max(1, STRIDE // self.steps.batch))

    def _stride(self, cursor: Cursor, count: int) -> list[PlannedBatch]:
        """Return ``count`` steps of one epoch, with their samples computed together."""
        steps = self.steps.of(cursor.epoch)
        cursors, positions = [cursor], []
        for _ in range(count):
            positions.append(steps.rank_positions(cursors[-1].position, self.rank))
            cursors.append(Cursor(cursor.epoch, steps.stop(cursors[-1].position)))
        cursors[-1] = cursors[-1].normal(self.steps)
        joined = self.skips.original(cursor.epoch, np.concatenate(positions))
        samples, passes = at_with_passes(self.order, cursor.epoch, joined)
        ends = np.cumsum([part.size for part in positions]).tolist()
        return [
            PlannedBatch(
                cursor.epoch,
                samples[begin:end],
                after,
                None if passes is None else passes[begin:end],
            )
            for begin, end, after in zip([0, *ends], ends, cursors[1:], strict=False)
        ]
