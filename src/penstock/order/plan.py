"""The plan: everything that is decided before the first byte is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.order.orders import Order, at_with_passes, positions_of
from penstock.order.permutation import STRIDE, Indices
from penstock.order.skips import NO_SKIPS, Occurrence, Skips
from penstock.order.steps import Cursor, Steps


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
        """Return the positions in the order of this rank's batch in the step at ``cursor``."""
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
        """Return every time that a sample comes in an epoch, in the order of time.

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
        """Yield the next ``steps`` batches, also across the ends of epochs.

        Samples are computed for a growing number of batches at once: the first batch is there
        soon, and later ones cost a fraction of it.
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
