"""The batches of a stream, as they are handed out: transformed, collated and on the device.

While the batches of one round are used, the readers fill those of the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch

from penstock.errors import PlanError
from penstock.keyed import Reading, announce, current_reading, keyed_generator, sample_keys
from penstock.metrics import Probe
from penstock.order import Cursor, Plan
from penstock.order.orders import at_with_passes
from penstock.sources.contract import Field
from penstock.streaming.planner import Segment
from penstock.streaming.ragged import Assembly
from penstock.streaming.readers import ReaderPool
from penstock.transforms.base import Transform

BatchTransform: TypeAlias = Callable[[Any, torch.Generator], Any]
Tensors: TypeAlias = dict[str, torch.Tensor]
Sent: TypeAlias = tuple[Tensors, torch.Event]


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


# -- copies to an accelerator, on a separate stream, while the previous batch is in use


class Transfer:
    """Copies batches to a device one batch ahead, so that the copy overlaps with training.

    Host memory must be page-locked. Host tensors are kept alive until their copy has finished, and
    device tensors are recorded on the stream that uses them, so neither is reused too early.

    Args:
        device: The accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side = torch.Stream(device)
        self._copying: deque[tuple[Tensors, torch.Event]] = deque()
        self._lock = threading.Lock()  # one thread may send while another one receives

    def ahead(self, batches: Iterator[Tensors], is_ready: Callable[[], bool]) -> Iterator[Tensors]:
        """Yield the batches on the device.

        Args:
            batches: The batches in host memory.
            is_ready: Returns whether the next one is complete. Only then is it sent early: the
                caller must not wait for a batch that it has not asked for.
        """
        following = self.send(next(batches))
        while True:
            sent, early = following, is_ready()
            if early:
                following = self.send(next(batches))
            yield self.receive(sent)
            if not early:
                following = self.send(next(batches))

    def send(self, host: Tensors) -> Sent:
        """Start to copy a batch, and keep its host tensors alive until the copy has finished."""
        self._drop_copied()
        with Probe("transfer"), self._side:
            moved = {name: t.to(self.device, non_blocking=True) for name, t in host.items()}
            done = self._side.record_event()
        self._copying.append((host, done))
        return moved, done

    def receive(self, sent: Sent) -> Tensors:
        """Return the batch on the device, for use on the current stream."""
        moved, done = sent
        using = torch.accelerator.current_stream(self.device)
        using.wait_event(done)
        for tensor in moved.values():
            tensor.record_stream(using)
        self._drop_copied()
        return moved

    def _drop_copied(self) -> None:
        """Drop host tensors whose copy has finished, so that their slots become free."""
        with self._lock:
            while self._copying and self._copying[0][1].query():
                self._copying.popleft()


def transfer_to(device: torch.device | str | None) -> Transfer | None:
    """Return a transfer to an accelerator; None for the CPU, where nothing is copied."""
    if device is None or torch.device(device).type == "cpu":
        return None
    return Transfer(torch.device(device))


def check_device(device: torch.device | str | None) -> torch.device | str | None:
    """Return the device, if torch knows one of that name.

    Raises:
        PlanError: It does not.
    """
    if device is None:
        return None
    try:
        torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise PlanError(
            f"device must be a torch.device or its name, such as 'cuda' or 'cpu', got {device!r}: "
            f"{first}"
        ) from error
    return device
