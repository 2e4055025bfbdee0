"""The reader pool: threads that take planned reads from a queue and fill the memory of the stream.

A round is opened when its batches have memory, is read block by block, and is finished when the
last block has been written. Rounds finish in plan order for the consumer.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from penstock.errors import WorkerError
from penstock.keyed import Reading, announce
from penstock.metrics import Probe, Recorder, Work, current_recorder
from penstock.streaming.planner import BlockRead, Part, Planner
from penstock.streaming.threads import (
    LOOK_SECONDS,
    BackgroundThread,
    BatchTimeoutError,
    check_process,
    request_stop_all,
    start_all,
    stop_or_warn,
    wait_for,
)

if TYPE_CHECKING:
    from penstock.streaming.buffers import SlotTable
    from penstock.streaming.held import HeldReader, HeldTable
    from penstock.streaming.held_rows import ComposedReader
    from penstock.streaming.placement import SlotReader

AFTER_TIMEOUT_SECONDS = 0.5  # close() waits no longer for a read that has already timed out

# where reads write to, and what batches are made of: rows of batches, or blocks that are held.
# `open_part` and `has_room` are called under the lock of the queue, the rest by the consumer
BatchMemory: TypeAlias = "SlotTable | HeldTable"
# reads a block to the destination that `open_part` returned for it; each thread has its own
BlockReader: TypeAlias = "SlotReader | HeldReader | ComposedReader | AnnouncedReader"


class AnnouncedReader:
    """Announces the pass of each block to sources whose samples differ from pass to pass.

    Args:
        make: Makes the reader of a thread.
        seed: Of the loader.
    """

    def __init__(self, make: Callable[[], BlockReader], seed: int) -> None:
        self._reader, self._seed = make(), seed

    def read(self, read: BlockRead, target: Any) -> None:
        """Read a block."""
        turn = read.epoch if read.turn is None else read.turn
        announce(Reading(self._seed, turn, read.start + read.index))
        self._reader.read(read, target)


class ReaderPool:
    """Threads that read rounds ahead; a batch is available when all its rounds are read.

    The threads end when the pool is closed, garbage-collected, or the interpreter exits. An error
    in one of them is raised when a batch of its round is requested; all batches before that are
    delivered first.

    Args:
        parts: What is read, and where it goes; see `plan_parts`.
        memory: Memory of the blocks or batches.
        reader: Returns the object that reads a block; called once for each thread.
        threads: Number of reader threads.
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
        what: str,
        timeout: float,
    ) -> None:
        self._ready = self._taken = 0  # batches that are complete, and that were handed over
        self._memory, self._reader, self._timeout = memory, reader, timeout
        self._close_seconds: float | None = None
        self._queue = ReadQueue(Planner(parts), memory)
        self._work = partial(_run, self._queue, what, current_recorder())
        self._count = 0
        self._threads: list[BackgroundThread] = []
        weakref.finalize(self, request_stop_all, self._threads).atexit = False
        self.use_readers(threads)

    def use_readers(self, count: int) -> None:
        """Use another number of threads; surplus ones end after their current read."""
        new, queue = self._queue.need(count - self._count), self._queue
        self._threads[:] = [thread for thread in self._threads if thread.is_running]
        names = [f"read-{self._count + i}" for i in range(new)]
        work = [partial(self._work, self._reader()) for _ in names]
        added = [BackgroundThread(n, w, queue.close) for n, w in zip(names, work, strict=True)]
        self._threads += added
        self._count = count
        start_all(added)

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
        """Wait until the next round is finished; return the number of complete batches."""
        queue = self._queue
        queue.wake_readers()  # memory may have become free in the meantime
        wait = partial(wait_for, threads=self._threads, timeout=self._timeout)
        try:
            return wait(queue.news, queue.finish_round)
        except BatchTimeoutError:
            self._close_seconds = AFTER_TIMEOUT_SECONDS
            raise

    def close(self) -> None:
        """Stop the threads as soon as their reads return, and free the memory.

        A read that does not return within `threads.STOP_SECONDS` is abandoned. Its memory stays
        reserved, because it may still write to it.
        """
        if stop_or_warn(self._threads, self._close_seconds):
            self._memory.release_all()


@dataclass(slots=True, eq=False)
class _OpenRound:
    """A round that is being read."""

    ready: int  # batches that are complete after it
    left: int = 0  # reads that are not done yet, of the parts given out so far
    is_planned: bool = False  # all parts were given out
    error: BaseException | None = None

    @property
    def is_finished(self) -> bool:
        return self.is_planned and self.left == 0


class _Task(NamedTuple):
    """One block to read."""

    round: _OpenRound
    read: BlockRead
    target: Any  # where it goes, see `BatchMemory.open_part`
    reads: int  # in its part


class ReadQueue:
    """Reads in plan order for the readers, finished rounds in plan order for the consumer.

    Locks are taken by ``with lock``, never by ``with condition``: an interrupt inside of
    `threading.Condition` can leave its lock locked forever.

    Args:
        planner: What is read, and where it goes.
        memory: Memory of the batches.
    """

    def __init__(self, planner: Planner, memory: BatchMemory) -> None:
        self.news: SimpleQueue[None] = SimpleQueue()  # for the consumer: call `finish_round` again
        self._planner, self._memory = planner, memory
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)  # for readers: there may be a task, or the end
        self._tasks: deque[_Task] = deque()
        self._rounds: deque[_OpenRound] = deque()
        self._error: BaseException | None = None  # of a reader, outside of a read
        self._surplus = 0  # readers that should end
        self._closed = False

    # -- called by readers

    def take(self) -> _Task | None:
        """Return the next block to read, in plan order; None when there is no more."""
        with self._lock:
            while not self._closed:
                if self._surplus:
                    self._surplus -= 1
                    break
                if self._tasks:
                    return self._tasks.popleft()
                if not self._open_part():
                    if self._planner.error is not None:
                        self.news.put(None)
                        break
                    self._work.wait(LOOK_SECONDS)
            return None

    def _open_part(self) -> bool:
        """Make tasks of the next part; False if its round has no memory yet, or planning failed."""
        part = self._planner.peek()
        targets = None if part is None else self._memory.open_part(part)
        if part is None or targets is None:
            return False
        self._planner.pop()
        if part.begins:
            self._rounds.append(_OpenRound(part.round.ready))
        opened, count = self._rounds[-1], len(part.reads)
        opened.left += count
        opened.is_planned = part.ends
        tasks = zip(part.reads, targets, strict=True)
        self._tasks.extend(_Task(opened, read, target, count) for read, target in tasks)
        self._work.notify_all()
        if opened.is_finished:  # it has no block of this rank
            self.news.put(None)
        return True

    def done(self, task: _Task, error: BaseException | None) -> None:
        """Note that a block was written, or could not be read."""
        opened = task.round
        with self._lock:
            opened.left -= 1
            opened.error = opened.error or error
            if error is not None or opened.is_finished:
                self.news.put(None)
        # Plan the next part in the middle of this one, while other threads read, so that nobody
        # waits for it at the end. At the beginning the consumer needs the interpreter.
        if 2 * len(self._tasks) <= task.reads:
            with Probe("plan"):
                self._planner.plan_ahead()

    def fail(self, error: BaseException) -> None:
        """Note an error of a reader that is not an error of a read."""
        with self._lock:
            self._error = self._error or error
            self.news.put(None)

    # -- called by the consumer

    def need(self, more: int) -> int:
        """Let readers end if ``more`` is negative; return how many have to be started."""
        with self._lock:
            self._surplus -= more
            new, self._surplus = max(0, -self._surplus), max(0, self._surplus)
            self._work.notify_all()
            return new

    def finish_round(self) -> int | None:
        """Remove the first round if it is finished; return the number of complete batches.

        Returns None while the round is being read, and raises the error that prevents it.
        """
        with self._lock:
            opened = self._rounds[0] if self._rounds else None
            if opened is not None and opened.error is not None:
                raise opened.error
            if opened is not None and opened.is_finished:
                return self._rounds.popleft().ready
            if self._error is not None:
                raise self._error
            if self._planner.error is not None and not (opened and opened.is_planned):
                raise self._planner.error
            if self._closed:
                raise WorkerError("the stream was closed while waiting for a batch")
            return None

    def wake_readers(self) -> None:
        """Wake the readers that wait for memory."""
        with self._lock:
            self._work.notify_all()

    def close(self) -> None:
        """Ask the readers to end; may be called from any thread, at any time."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self.news.put(None)


def _run(queue: ReadQueue, what: str, recorder: Recorder | None, reader: BlockReader) -> None:
    thread = threading.current_thread()
    assert isinstance(thread, BackgroundThread)
    try:
        with Work(recorder, thread.name):
            while (task := queue.take()) is not None:
                start, stop = task.read.start, task.read.start + task.read.count
                thread.activity = f"samples {start}:{stop} of {what}"
                with Probe("read", (start, stop)):
                    error = _read(reader, task, thread.name)
                thread.activity = None
                queue.done(task, error)
                del task, error  # release the part's arrays before waiting for the next one
    except BaseException as error:  # noqa: BLE001 - raised when the consumer asks for a batch
        queue.fail(error)


def _read(reader: BlockReader, task: _Task, name: str) -> BaseException | None:
    read = task.read
    try:
        reader.read(read, task.target)
    except BaseException as error:  # noqa: BLE001 - raised when the consumer asks for the batch
        error.add_note(f"reading samples {read.start}:{read.start + read.count} in {name}")
        if isinstance(error, StopIteration):  # would end the iteration over batches
            stopped = WorkerError(f"the source raised {error!r} instead of reading samples")
            stopped.__cause__ = error
            return stopped
        return error
    return None
