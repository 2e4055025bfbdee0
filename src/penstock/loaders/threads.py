"""Batches read ahead by threads: for datasets whose reading lets go of the interpreter's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from penstock.keyed import Reading, announce
from penstock.loaders.executors import Read
from penstock.order import Cursor, Plan, PlannedBatch


class ThreadStream:
    """Batches read by a pool of threads, in plan order, two a thread ahead."""

    def __init__(
        self,
        plan: Plan,
        cursor: Cursor,
        batches: Iterator[PlannedBatch],
        read: Read,
        *,
        threads: int,
    ) -> None:
        self._plan, self._cursor, self._batches, self._read = plan, cursor, batches, read
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-batches")
        self._coming: deque[tuple[PlannedBatch, Future[Any]]] = deque()
        for _ in range(2 * threads):
            self._send()

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Is the next batch of this stream the one at ``cursor`` of ``plan``?"""
        return plan is self._plan and cursor == self._cursor

    def __next__(self) -> tuple[Cursor, Any]:
        planned, coming = self._coming.popleft()
        batch = coming.result()
        self._send()
        self._cursor = planned.after
        return planned.after, batch

    def close(self) -> None:
        """End the threads, each after the batch it is reading."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _send(self) -> None:
        planned = next(self._batches)
        reading = Reading(self._plan.order.seed, planned.epoch, planned.samples)
        self._coming.append((planned, self._pool.submit(_read, self._read, planned, reading)))


def _read(read: Read, planned: PlannedBatch, reading: Reading) -> Any:
    announce(reading)
    try:
        return read(planned)
    finally:
        announce(None)
