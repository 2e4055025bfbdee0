"""Batches read ahead by threads: for datasets whose reading lets go of the interpreter's lock."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from penstock.keyed import Reading, announce
from penstock.loaders.executors import Read
from penstock.order import Cursor, Plan, PlannedBatch
from penstock.streaming.threads import (
    BackgroundThread,
    BatchTimeoutError,
    check_process,
    request_stop_all,
    start_all,
    stop_or_warn,
    wait_for,
)


class ThreadStream:
    """Batches read by threads, in plan order, two per thread ahead.

    Args:
        plan: The plan.
        cursor: Where its first batch is.
        batches: The planned batches from there on. They may end, as they do with an epoch: nothing
            is read ahead of a dataset that the caller may change between epochs.
        read: Reads a planned batch.
        threads: How many batches are read at once.
        timeout: Seconds to wait for a batch; 0 for no limit.
    """

    def __init__(
        self,
        plan: Plan,
        cursor: Cursor,
        batches: Iterator[PlannedBatch],
        read: Read,
        *,
        threads: int,
        timeout: float = 0,
    ) -> None:
        self._plan, self._cursor, self._batches, self._timeout = plan, cursor, batches, timeout
        self._coming: deque[_Task] = deque()
        self._tasks = _TaskQueue(threads)
        work = partial(_work, self._tasks, read)
        self._threads = [
            BackgroundThread(f"batches-{i}", work, self._tasks.close) for i in range(threads)
        ]
        for _ in range(2 * threads):
            self._send()
        start_all(self._threads)
        weakref.finalize(self, request_stop_all, self._threads).atexit = False

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Is the next batch of this stream the one at ``cursor`` of ``plan``?"""
        return bool(self._coming) and plan is self._plan and cursor == self._cursor

    def __next__(self) -> tuple[Cursor, Any]:
        check_process(self._threads)
        task = self._coming.popleft()
        self._cursor = task.planned.after
        try:
            batch = wait_for(task.news, task.poll, threads=self._threads, timeout=self._timeout)
        except BatchTimeoutError:
            self._batches = iter(())  # it does not continue: the thread may never come back
            self._coming.clear()
            raise
        finally:
            self._send()
        return task.planned.after, batch[0]

    def close(self) -> None:
        """End the threads, each after the batch it is reading; see `threads.STOP_SECONDS`."""
        self._coming.clear()
        stop_or_warn(self._threads)

    def _send(self) -> None:
        planned = next(self._batches, None)
        if planned is None:
            return
        task = _Task(planned, Reading(self._plan.order.seed, planned.epoch, planned.samples))
        self._coming.append(task)
        self._tasks.queue.put(task)


@dataclass(slots=True, eq=False)
class _Task:
    """A batch to read, and what came of it."""

    planned: PlannedBatch
    reading: Reading
    news: SimpleQueue[None] = field(default_factory=SimpleQueue)
    batch: tuple[Any] | None = None
    error: BaseException | None = None

    def __str__(self) -> str:
        first, count = self.planned.samples[:1].tolist(), len(self.planned.samples)
        return f"a batch of {count} samples from sample {first[0]} on" if count else "a batch"

    def poll(self) -> tuple[Any] | None:
        """The batch, in a tuple; None while it is being read."""
        if self.error is not None:
            raise self.error
        return self.batch

    def run(self, read: Read) -> None:
        """Read it."""
        announce(self.reading)
        try:
            self.batch = (read(self.planned),)
        except BaseException as error:  # noqa: BLE001 - re-raised where the batch is asked for
            self.error = error
        finally:
            announce(None)
            self.news.put(None)


@dataclass(slots=True, eq=False)
class _TaskQueue:
    """What is to be read; threads hold this, so that the stream can be dropped."""

    threads: int
    queue: SimpleQueue[_Task | None] = field(default_factory=SimpleQueue)  # None wakes a thread
    closed: bool = False

    def take(self) -> _Task | None:
        """The next task; None when it is over."""
        task = self.queue.get()
        return None if self.closed else task

    def close(self) -> None:
        """Nobody wants a batch any more; takes no lock, and may be called at any moment."""
        self.closed = True
        for _ in range(self.threads):
            self.queue.put(None)


def _work(tasks: _TaskQueue, read: Read) -> None:
    thread = threading.current_thread()
    assert isinstance(thread, BackgroundThread)
    while (task := tasks.take()) is not None:
        thread.activity = task
        task.run(read)
        thread.activity = None
        del task  # nor its batch
