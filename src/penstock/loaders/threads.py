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
    """Batches read by a pool of threads, in plan order, two a thread ahead.

    ``batches`` may end, as it does with an epoch: nothing is read ahead of a dataset that the
    caller may change between epochs.
    """

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
        return bool(self._coming) and plan is self._plan and cursor == self._cursor

    def __next__(self) -> tuple[Cursor, Any]:
        planned, coming = self._coming.popleft()
        self._cursor = planned.after
        try:
            return planned.after, coming.result()
        finally:
            self._send()

    def close(self) -> None:
        """End the threads, each after the batch it is reading."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _send(self) -> None:
        planned = next(self._batches, None)
        if planned is not None:
            reading = Reading(self._plan.order.seed, planned.epoch, planned.samples)
            self._coming.append((planned, self._pool.submit(_read, self._read, planned, reading)))


def _read(read: Read, planned: PlannedBatch, reading: Reading) -> Any:
    announce(reading)
    try:
        return read(planned)
    finally:
        announce(None)
