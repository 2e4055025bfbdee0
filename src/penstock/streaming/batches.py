"""Batches as they come out of the pipeline: in order, finished, on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from penstock.keyed import Reading, announce, current_reading, keyed_generator, sample_keys
from penstock.order import Cursor, Plan
from penstock.streaming.memory import Slots
from penstock.streaming.pipeline import Pipeline
from penstock.streaming.segments import Segment
from penstock.streaming.transfer import Transfer
from penstock.transforms.base import Transform

Batch: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
BatchTransform: TypeAlias = Callable[[Any, torch.Generator], Any]


class BatchStream:
    """One rank's batches of a plan, from a cursor on, without end.

    Args:
        segments: What is delivered, epoch by epoch; the pipeline follows the same.
        transform: Called with the whole batch and a generator keyed by (seed, epoch, step, rank);
            a `Transform` changes each sample by its own key instead.
        collate: Called with the batch last.
    """

    def __init__(
        self,
        plan: Plan,
        segments: Callable[[], Iterator[Segment]],
        pipeline: Pipeline,
        slots: Slots,
        transfer: Transfer | None,
        *,
        transform: BatchTransform | None,
        collate: Callable[[Any], Any] | None,
    ) -> None:
        self._plan, self._pipeline = plan, pipeline
        self._transform, self._collate = transform, collate
        self._finishes = transform is not None or collate is not None
        self._unnamed = slots.fields.keys() == {""}
        self._cursors = _cursors(plan, segments())
        self._cursor = next(self._cursors)  # of the next batch
        batches = _filled(plan, segments(), pipeline, slots)
        self._batches = batches if transfer is None else transfer.ahead(batches, pipeline)

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Is the next batch of this stream the one at ``cursor`` of ``plan``?"""
        return plan is self._plan and (cursor is self._cursor or cursor == self._cursor)

    def __next__(self) -> tuple[Cursor, Any]:
        """The next batch and the cursor after it; blocks until it is there."""
        fields, cursor = next(self._batches), self._cursor
        self._cursor = after = next(self._cursors)
        batch = fields[""] if self._unnamed else fields
        return after, self._finish(batch, cursor) if self._finishes else batch

    def close(self) -> None:
        """End the reader threads; batches handed out stay valid."""
        self._batches = iter(())
        self._pipeline.close()

    def _finish(self, batch: Any, cursor: Cursor) -> Any:
        order, outer = self._plan.order, current_reading()
        announce(Reading(order.seed, cursor.epoch, self._plan.samples(cursor)))
        try:
            if isinstance(self._transform, Transform):
                keys = sample_keys(self._plan.samples(cursor), "transform")
                batch = self._transform.batch(batch, keys)
            elif self._transform is not None:
                path = ("transform", cursor.epoch, cursor.position, self._plan.rank)
                batch = self._transform(batch, keyed_generator(order.seed, *path))
            return batch if self._collate is None else self._collate(batch)
        finally:
            announce(outer)


def _cursors(plan: Plan, segments: Iterator[Segment]) -> Iterator[Cursor]:
    """Where each batch begins."""
    for segment in segments:
        for begin in segment.begins(plan.steps.whole):
            yield Cursor(segment.epoch, begin)


def _filled(
    plan: Plan, segments: Iterator[Segment], pipeline: Pipeline, slots: Slots
) -> Iterator[dict[str, torch.Tensor]]:
    """Batches in their slots, as soon as they are complete; a transfer is one ahead."""
    world, rank = plan.steps.world, plan.rank
    for segment in segments:
        for m in segment.lengths(plan.steps.whole):
            rows = (rank + 1) * m // world - rank * m // world
            yield slots.hand_out(pipeline.next_slot(), rows)
