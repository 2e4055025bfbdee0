"""Batches as they come out of the pipeline: in order, finished, on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import tee
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
        self._places, filled = tee(_places(plan, segments()))  # a transfer is one batch ahead
        self._place, _ = next(self._places)
        batches = _filled(pipeline, slots, filled)
        if transfer is not None:
            batches = transfer.ahead(batches, pipeline)
        self._batches = batches

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Is the next batch of this stream the one at ``cursor`` of ``plan``?"""
        return plan is self._plan and cursor == self._place

    def __next__(self) -> tuple[Cursor, Any]:
        """The next batch and the cursor after it; blocks until it is there."""
        batch, place = next(self._batches), self._place
        self._place, _ = next(self._places)
        return self._place, self._finish(batch, place)

    def close(self) -> None:
        """End the reader threads; batches handed out stay valid."""
        self._batches = iter(())
        self._pipeline.close()

    def _finish(self, fields: dict[str, torch.Tensor], place: Cursor) -> Any:
        batch: Any = fields[""] if fields.keys() == {""} else fields
        if self._transform is None and self._collate is None:
            return batch
        order, outer = self._plan.order, current_reading()
        announce(Reading(order.seed, place.epoch, self._plan.samples(place)))
        try:
            if isinstance(self._transform, Transform):
                keys = sample_keys(self._plan.samples(place), "transform")
                batch = self._transform.batch(batch, keys)
            elif self._transform is not None:
                path = ("transform", place.epoch, place.position, self._plan.rank)
                batch = self._transform(batch, keyed_generator(order.seed, *path))
            return batch if self._collate is None else self._collate(batch)
        finally:
            announce(outer)


def _filled(
    pipeline: Pipeline, slots: Slots, places: Iterator[tuple[Cursor, int]]
) -> Iterator[dict[str, torch.Tensor]]:
    """Batches in their slots, as soon as they are complete."""
    for _, rows in places:
        yield slots.hand_out(pipeline.next_slot(), rows)


def _places(plan: Plan, segments: Iterator[Segment]) -> Iterator[tuple[Cursor, int]]:
    """Where each batch begins, and how many rows of it are this rank's."""
    whole, world, rank = plan.steps.whole, plan.steps.world, plan.rank
    for segment in segments:
        for i in range(segment.count):
            begin, end = segment.bounds(i, whole)
            m = end - begin
            rows = (rank + 1) * m // world - rank * m // world
            yield Cursor(segment.epoch, begin), rows
