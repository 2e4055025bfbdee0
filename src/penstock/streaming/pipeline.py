"""The read-ahead pipeline: planner, buffers and readers put together, and its batches.

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
from penstock.streaming.planner import Part, Planner, Segment
from penstock.streaming.ragged import Assembly
from penstock.streaming.readers import BatchMemory, BlockReader, ReaderPool, ReadQueue
from penstock.streaming.threads import BatchTimeoutError, check_process
from penstock.streaming.transfer import Transfer
from penstock.transforms.base import Transform

BatchTransform: TypeAlias = Callable[[Any, torch.Generator], Any]

AFTER_TIMEOUT_SECONDS = 0.5  # close() waits no longer for a read that has already timed out


class Pipeline:
    """Reads rounds ahead; a batch is available when all its rounds are read.

    The threads end when the pipeline is closed, garbage-collected, or the interpreter exits. An
    error in one of them is raised when a batch of its round is requested; all batches before that
    are delivered first.

    Args:
        parts: What is read, and where it goes; see `plan_parts`.
        memory: Memory of the blocks or batches.
        reader: Returns the object that reads a block; called once for each thread.
        threads: Number of reader threads.
        name: Name of the threads.
        what: The source, for messages.
        timeout: Seconds to wait for a batch; 0 for no limit.
    """

    def __init__(
        self,
        parts: Iterator[Part],
        memory: BatchMemory,
        reader: Callable[[], BlockReader],
        *,
        threads: int,
        name: str,
        what: str,
        timeout: float,
    ) -> None:
        self._ready = self._taken = 0  # batches that are complete, and that were handed over
        self._memory, self._timeout = memory, timeout
        self._close_seconds: float | None = None
        self._queue = ReadQueue(Planner(parts), memory)
        self._readers = ReaderPool(self._queue, reader, threads=threads, name=name, what=what)
        self._threads = self._readers.threads

    def close(self) -> None:
        """Stop the threads as soon as their reads return, and free the memory.

        A read that does not return within `threads.STOP_SECONDS` is abandoned. Its memory stays
        reserved, because it may still write to it.
        """
        if self._readers.close(self._close_seconds):
            self._memory.release_all()

    def use_readers(self, readers: int) -> None:
        """Read with another number of threads from now on."""
        self._readers.resize(readers)

    def is_ready(self) -> bool:
        """Return whether `next_batch` would return without waiting."""
        return self._taken < self._ready

    def next_batch(self, rows: int) -> dict[str, Any]:
        """Return the next batch, of ``rows`` samples; wait until it is complete."""
        check_process(self._threads)  # before a lock is taken, which a child could never release
        while self._taken >= self._ready:
            self._ready = self._wait()
            self._memory.round_read()
        batch = self._memory.hand_out(self._taken, rows)
        self._taken += 1
        if self._memory.has_room:
            self._queue.wake_readers()
        return batch

    def _wait(self) -> int:
        try:
            return self._readers.wait_for_round(self._timeout)
        except BatchTimeoutError:
            self._close_seconds = AFTER_TIMEOUT_SECONDS
            raise


class BatchStream:
    """The batches of one rank, without end: transformed, collated and on the device.

    Args:
        plan: The plan.
        segments: Returns what is delivered, epoch by epoch; the pipeline reads the same segments.
        pipeline: Delivers the batches in host memory.
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
        pipeline: Pipeline,
        fields: Mapping[str, Field],
        transfer: Transfer | None,
        *,
        transform: BatchTransform | None,
        collate: Callable[[Any], Any] | None,
    ) -> None:
        self._plan, self._pipeline = plan, pipeline
        self._transform, self._collate = transform, collate
        self._finishes = transform is not None or collate is not None
        self._unnamed = list(fields) == [""]
        self._assemble = Assembly(fields) if any(f.ragged for f in fields.values()) else None
        self._cursors = _cursors(plan, segments())
        self._cursor = next(self._cursors)  # of the next batch
        batches = _batches(plan, segments(), pipeline)
        self._batches = batches if transfer is None else transfer.ahead(batches, pipeline.is_ready)

    def use_readers(self, readers: int) -> None:
        """Read with another number of threads from now on."""
        self._pipeline.use_readers(readers)

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
        self._pipeline.close()

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
    plan: Plan, segments: Iterator[Segment], pipeline: Pipeline
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield complete batches in host memory. A transfer asks for them one batch early."""
    world, rank = plan.steps.world, plan.rank
    for segment in segments:
        for m in segment.lengths(plan.steps.whole):
            rows = (rank + 1) * m // world - rank * m // world
            yield pipeline.next_batch(rows)
