"""The batches of a stream, as they are handed out: transformed, collated and on the device.

While the batches of one round are used, the readers fill those of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch

from penstock.keyed import Reading, announce, current_reading, keyed_generator, sample_keys
from penstock.metrics import Probe
from penstock.order import Cursor, Plan
from penstock.order.orders import at_with_passes
from penstock.sources.base import Field
from penstock.streaming.planner import Segment
from penstock.streaming.ragged import Assembly
from penstock.streaming.readers import ReaderPool
from penstock.streaming.transfer import Transfer
from penstock.transforms.base import Transform

BatchTransform: TypeAlias = Callable[[Any, torch.Generator], Any]


class BatchStream:
    """The batches of one rank, without end: transformed, collated and on the device.

    Args:
        plan: The plan.
        segments: Returns what is delivered, epoch by epoch; the readers read the same segments.
        readers: Deliver the batches in host memory.
        fields: The fields of the source.
        transfer: Copies batches to an accelerator; None for the CPU.
        transform: Called with the whole batch and a generator keyed by (seed, epoch, step, rank);
            a `Transform` is applied with a key for each sample instead.
        collate: Called with the batch last.
    """

    def __init__(
        self,
        plan: Plan,
        segments: Callable[[], Iterator[Segment]],
        readers: ReaderPool,
        fields: Mapping[str, Field],
        transfer: Transfer | None,
        *,
        transform: BatchTransform | None,
        collate: Callable[[Any], Any] | None,
    ) -> None:
        self._plan, self._readers = plan, readers
        self._transform, self._collate = transform, collate
        self._finishes = transform is not None or collate is not None
        self._unnamed = list(fields) == [""]
        self._assemble = Assembly(fields) if any(f.ragged for f in fields.values()) else None
        self._cursors = _cursors(plan, segments())
        self._cursor = next(self._cursors)  # of the next batch
        batches = _batches(plan, segments(), readers)
        self._batches = batches if transfer is None else transfer.ahead(batches, readers.is_ready)

    def use_readers(self, readers: int) -> None:
        """Read with another number of threads from now on."""
        self._readers.use_readers(readers)

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Return whether the next batch is the one at ``cursor`` of ``plan``."""
        return plan is self._plan and (cursor is self._cursor or cursor == self._cursor)

    def __next__(self) -> tuple[Cursor, Any]:
        """Return the cursor after the next batch, and the batch; wait until it is complete."""
        fields, cursor = next(self._batches), self._cursor
        self._cursor = after = next(self._cursors)
        if self._assemble is not None:
            fields = self._assemble(fields)
        batch = fields[""] if self._unnamed else fields
        return after, self._finish(batch, cursor) if self._finishes else batch

    def close(self) -> None:
        """Stop the reader threads; batches that were handed out stay valid."""
        self._batches = iter(())
        self._readers.close()

    def _finish(self, batch: Any, cursor: Cursor) -> Any:
        order, outer = self._plan.order, current_reading()
        positions, place = self._plan.positions(cursor), self._plan.skips.to_order(cursor)
        samples, passes = at_with_passes(order, cursor.epoch, positions)
        announce(Reading(order.seed, cursor.epoch, samples, passes))
        try:
            with Probe("transform"):
                if isinstance(self._transform, Transform):
                    keys = sample_keys(samples, "transform")
                    batch = self._transform.batch(batch, keys)
                elif self._transform is not None:
                    path = ("transform", cursor.epoch, place.position, self._plan.rank)
                    batch = self._transform(batch, keyed_generator(order.seed, *path))
            if self._collate is None:
                return batch
            with Probe("collate"):
                return self._collate(batch)
        finally:
            announce(outer)


def _cursors(plan: Plan, segments: Iterator[Segment]) -> Iterator[Cursor]:
    """Yield the cursor of each batch."""
    for segment in segments:
        for begin in segment.begins(plan.steps.whole):
            yield Cursor(segment.epoch, begin)


def _batches(
    plan: Plan, segments: Iterator[Segment], pool: ReaderPool
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield complete batches in host memory. A transfer asks for them one batch early."""
    world, rank = plan.steps.world, plan.rank
    for segment in segments:
        for m in segment.lengths(plan.steps.whole):
            rows = (rank + 1) * m // world - rank * m // world
            yield pool.next_batch(rows)
