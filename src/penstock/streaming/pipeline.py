"""Read ahead: threads that fill the next round's slots while this one's batches are used."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from penstock.errors import WorkerError
from penstock.order import Indices
from penstock.streaming.memory import Slots
from penstock.streaming.placing import Placer
from penstock.streaming.segments import BlockRead, Part
from penstock.streaming.threads import (
    BackgroundThread,
    BatchTimeoutError,
    check_process,
    request_stop_all,
    start_all,
    stop_or_warn,
    wait_for,
)

AFTER_TIMEOUT_SECONDS = 0.5  # that close() waits where a batch was waited for in vain already


class Pipeline:
    """Reads rounds into slots by threads; a batch's slot is available once its rounds are read.

    Threads end when the pipeline is closed, dropped, or the interpreter exits. An error in one of
    them is raised where its round's batches are asked for; all batches before come out first.

    Args:
        parts: What is to be read, and where it goes.
        slots: The memory of the batches.
        placer: Makes the object that reads a block, one for each thread.
        threads: How many of them.
        name: Of the threads.
        what: The source, for messages.
        timeout: Seconds to wait for a batch; 0 for no limit.
    """

    def __init__(
        self,
        parts: Iterator[Part],
        slots: Slots,
        placer: Callable[[], Placer],
        *,
        threads: int,
        name: str,
        what: str,
        timeout: float,
    ) -> None:
        self._ready = self._taken = 0  # batches complete, and handed over
        self._queue, self._free = ReadQueue(parts, slots), slots.free
        self._timeout = timeout
        self._stop_seconds: float | None = None  # the usual
        self._readers = [
            BackgroundThread(
                f"{name}-{i}", partial(_work, self._queue, placer(), what), self._queue.close
            )
            for i in range(threads)
        ]
        start_all(self._readers)
        weakref.finalize(self, request_stop_all, self._readers).atexit = False

    def close(self) -> None:
        """End the threads, as soon as the reads they are in return; unused slots go back.

        A read that does not return within `threads.STOP_SECONDS` is abandoned. Its slots never go
        back: it may still write to them.
        """
        if stop_or_warn(self._readers, self._stop_seconds):
            self._queue.give_back()

    @property
    def is_ready(self) -> bool:
        """Would `next_slot` give one at once?"""
        return self._taken < self._ready

    def next_slot(self) -> int:
        """The slot of the next batch; blocks until it is in place."""
        check_process(self._readers)  # before a lock is taken: nobody may release it in a child
        batch = self._taken
        while batch >= self._ready:
            self._ready = self._wait()
        self._taken = batch + 1
        if 0 < self._queue.wanted <= len(self._free):
            self._queue.wake_readers()
        return self._queue.slot_of.pop(batch)

    def _wait(self) -> int:
        self._queue.wake_readers()  # slots may be free by now
        try:
            return wait_for(
                self._queue.news,
                self._queue.poll_ready,
                threads=self._readers,
                timeout=self._timeout,
            )
        except BatchTimeoutError:
            self._stop_seconds = AFTER_TIMEOUT_SECONDS
            raise


@dataclass(slots=True, eq=False)
class _OpenRound:
    """A round that is being read: where its slots are, and what is still to come."""

    ready: int  # batches that are complete after it
    batch: int  # rows of a slot
    shifts: Indices
    left: int = 0  # reads of the parts so far
    whole: bool = False  # there are no further parts
    error: BaseException | None = None

    def targets(self, rows: Indices) -> Indices:
        """Rows of the round's batches as rows of the slots, in place."""
        rows += self.shifts[rows // self.batch]
        return rows


class _Work(NamedTuple):
    """One block to read, for the rows of a part."""

    round: _OpenRound
    read: BlockRead
    targets: Indices
    reads: int  # of the part


@dataclass(slots=True, eq=False)
class ReadQueue:
    """Where readers and the consumer meet; readers hold it, so that the pipeline can be dropped.

    The lock is taken by ``with`` directly, not through its condition: in between, an interrupt
    could leave it taken for ever.
    """

    parts: Iterator[Part]
    slots: Slots
    lock: threading.RLock = field(default_factory=threading.RLock)
    work: threading.Condition = field(init=False)  # for readers: there may be some, or the end
    news: SimpleQueue[None] = field(default_factory=SimpleQueue)  # for the consumer
    closed: bool = False
    error: BaseException | None = None  # of a reader
    plan_error: BaseException | None = None
    _open: deque[_OpenRound] = field(default_factory=deque)
    _reads: deque[_Work] = field(default_factory=deque)
    slot_of: dict[int, int] = field(default_factory=dict)  # batch -> slot, until handed over
    _planner: threading.Lock = field(default_factory=threading.Lock)  # of one that plans a part
    _next: Part | None = None
    wanted: int = 0  # free slots that readers wait for

    def __post_init__(self) -> None:
        self.work = threading.Condition(self.lock)

    # -- readers

    def take(self) -> _Work | None:
        """The next block to read, in plan order; None when it is over."""
        with self.lock:
            while not self.closed:
                if self._reads:
                    return self._reads.popleft()
                if not self._open_part():
                    if self.plan_error is not None:
                        break
                    self.work.wait()
            return None

    def _open_part(self) -> bool:
        """Give out the next part; False where its round needs more slots, or there is no plan."""
        with self._planner:
            part = self._next = self._next or self._plan()
        if part is None or (part.begins and not self._open_round(part)):
            return False
        opened = self._open[-1]
        opened.left += len(part.reads)
        opened.whole = part.ends
        targets = opened.targets(part.rows)
        self._next = None
        self._reads.extend(_Work(opened, read, targets, len(part.reads)) for read in part.reads)
        self.work.notify_all()
        if opened.whole and not opened.left:  # none of it is this rank's
            self.news.put(None)
        return True

    def _open_round(self, part: Part) -> bool:
        batches = range(part.round.first, part.round.stop)
        new = [batch for batch in batches if batch not in self.slot_of]
        if len(self.slots.free) < len(new):
            self.wanted = len(new)
            return False
        self.slot_of.update(zip(new, self.slots.take(len(new)), strict=True))
        shifts = self.slots.shifts([self.slot_of[batch] for batch in batches])
        self._open.append(_OpenRound(part.round.ready, self.slots.batch, shifts))
        self.wanted = 0
        return True

    def _plan(self) -> Part | None:
        """The next part; None where planning failed, in this thread or in another one."""
        if self.plan_error is None:
            try:
                return next(self.parts)
            except BaseException as error:  # noqa: BLE001 - re-raised after what was planned
                self.plan_error = error
                self.news.put(None)
        return None

    def plan_ahead(self, reads: int) -> None:
        """Plan the next part while others read: at its turn nobody has to wait for that.

        In the middle of a part of so many reads: at its begin the consumer is busy.
        """
        early = 2 * len(self._reads) > reads
        if self._next is None and not early and self._planner.acquire(blocking=False):
            try:
                self._next = self._next or self._plan()
            finally:
                self._planner.release()

    def done(self, opened: _OpenRound, error: BaseException | None) -> None:
        """A block is in place, or could not be read."""
        with self.lock:
            opened.left -= 1
            opened.error = opened.error or error
            if error is not None or (opened.whole and opened.left == 0):
                self.news.put(None)

    def fail(self, error: BaseException) -> None:
        """A reader ends with an error that is not of a read."""
        with self.lock:
            self.error = self.error or error
            self.news.put(None)

    def close(self) -> None:
        """Nobody wants a batch any more; may be called by any thread, at any moment."""
        with self.lock:
            self.closed = True
            self.work.notify_all()
            self.news.put(None)

    # -- the consumer

    def poll_ready(self) -> int | None:
        """Batches that are complete with the next round; None while it is being read."""
        with self.lock:
            opened = self._open[0] if self._open else None
            if opened is not None and opened.error is not None:
                raise opened.error
            if opened is not None and opened.whole and opened.left == 0:
                return self._open.popleft().ready
            if self.error is not None:
                raise self.error
            if self.plan_error is not None and not (opened is not None and opened.whole):
                raise self.plan_error
            if self.closed:
                raise WorkerError("the stream was closed while a batch was waited for")
            return None

    def wake_readers(self) -> None:
        """Wake readers that wait for slots."""
        with self.lock:
            self.work.notify_all()

    def give_back(self) -> None:
        """The slots of batches that nobody will ask for; no reader lives any more."""
        while self.slot_of:
            self.slots.free.append(self.slot_of.popitem()[1])


def _work(queue: ReadQueue, placer: Placer, what: str) -> None:
    thread = threading.current_thread()
    assert isinstance(thread, BackgroundThread)
    try:
        while (work := queue.take()) is not None:
            start, count = work.read.start, work.read.count
            thread.activity = f"samples {start}:{start + count} of {what}"
            error = _read(placer, work, thread.name)
            thread.activity = None
            queue.done(work.round, error)
            queue.plan_ahead(work.reads)
            del work, error  # the part's plan is not kept while the next one is waited for
    except BaseException as error:  # noqa: BLE001 - re-raised where a batch is asked for
        queue.fail(error)


def _read(placer: Placer, work: _Work, name: str) -> BaseException | None:
    read = work.read
    try:
        placer.place(read, work.targets)
    except BaseException as error:  # noqa: BLE001 - re-raised where its batch is asked for
        error.add_note(f"reading samples {read.start}:{read.start + read.count} in {name}")
        if isinstance(error, StopIteration):  # would end the iteration over batches instead
            stopped = WorkerError(f"the source raised {error!r} instead of reading samples")
            stopped.__cause__ = error
            return stopped
        return error
    return None
