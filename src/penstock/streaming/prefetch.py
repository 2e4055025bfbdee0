"""Background threads that compute a bounded number of results ahead, in order."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Self, TypeVar

from penstock.errors import WorkerError
from penstock.metrics import Recorder, Work, current_recorder
from penstock.streaming.threads import (
    BackgroundThread,
    check_process,
    request_stop_all,
    start_all,
    stop_or_warn,
    wait_for,
)

Item = TypeVar("Item")
Result = TypeVar("Result")


class Prefetched(Iterator[Result], Generic[Result]):
    """An iterator over ``work(item)`` for each item, computed up to ``ahead`` results early.

    The threads end when the iterator is closed, garbage-collected or exhausted. An error in one of
    them ends it, and is raised when its result is requested; the results before it are delivered
    first.

    Args:
        items: The items; the threads take them, one thread at a time.
        work: Computes the result of an item.
        ahead: Results to compute before they are requested.
        name: Name of the threads; ``{}`` in it stands for the number of the thread.
        parts: Returns the objects of a result that hold memory. While the caller holds those of
            two results, the next one is not started, so at most ``ahead + 1`` exist. A caller
            that requests a result while it holds two is assumed to do so on purpose, and is not
            delayed again.
        threads: Number of threads.
        timeout: Seconds to wait for a result; 0 for no limit.

    >>> with Prefetched(range(3), lambda x: x * x, ahead=2, name="squares") as early:
    ...     list(early)
    [0, 1, 4]
    """

    def __init__(
        self,
        items: Iterable[Item],
        work: Callable[[Item], Result],
        *,
        ahead: int,
        name: str,
        parts: Callable[[Result], Iterable[object]] = lambda result: (),
        threads: int = 1,
        timeout: float = 0,
    ) -> None:
        self._queue: _ResultQueue[Item, Result] = _ResultQueue(iter(items), ahead, parts)
        self._run = partial(_run, work, self._queue, current_recorder())
        self._name, self._timeout, self._count = name, timeout, 0
        self._threads: list[BackgroundThread] = []
        weakref.finalize(self, request_stop_all, self._threads).atexit = False
        self.use_threads(threads, ahead)

    def use_threads(self, count: int, ahead: int) -> None:
        """Use another number of threads; those that are too many end after their work.

        Args:
            count: Number of threads.
            ahead: Results to compute before they are requested.
        """
        new = self._queue.resize(count - self._count, ahead)
        running = [thread for thread in self._threads if thread.is_running]
        self._threads[:] = running or self._threads[:1]  # all end with the last item
        names = [self._name.format(self._count + i) for i in range(new)]
        added = [BackgroundThread(name, self._run, self._queue.close) for name in names]
        self._threads += added
        self._count = count
        start_all(added)

    def __next__(self) -> Result:
        check_process(self._threads)  # before a lock is taken, which a child could never release
        queue = self._queue
        queue.before_wait()
        found = wait_for(queue.news, queue.poll, threads=self._threads, timeout=self._timeout)
        if not found:
            raise StopIteration
        return queue.lend(found.pop())

    def close(self) -> None:
        """Stop the threads when their current work returns; see `threads.STOP_SECONDS`."""
        stop_or_warn(self._threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(slots=True, eq=False)
class _ResultQueue(Generic[Item, Result]):
    """Items and results between the threads and the consumer; the threads refer only to this.

    The lock is re-entrant: the deletion of a part may be noted at any moment, in any thread, also
    in one that holds the lock.
    """

    items: Iterator[Item]
    ahead: int
    parts: Callable[[Result], Iterable[object]]
    taking: threading.Lock = field(default_factory=threading.Lock)  # held to take the next item
    lock: threading.RLock = field(default_factory=threading.RLock)
    room: threading.Condition = field(init=False)  # for the threads: they may continue
    news: SimpleQueue[None] = field(default_factory=SimpleQueue)  # for the consumer
    results: dict[int, Result] = field(default_factory=dict)  # by the number of their item
    started: int = 0  # items taken
    delivered: int = 0
    total: int | None = None  # results there are, once that is known
    error: BaseException | None = None  # raised after them
    surplus: int = 0  # threads that should end
    closed: bool = False
    _waiting: bool = False  # the consumer waits for news
    _lent: list[dict[int, weakref.ref[Any]]] = field(default_factory=list)  # held by the caller
    _holds_many: bool = False  # the caller holds more than one on purpose

    def __post_init__(self) -> None:
        self.room = threading.Condition(self.lock)

    # -- called by the threads

    def take(self) -> tuple[int, Item] | None:
        """Return the next item and its number when it may be started; None to end the thread."""
        with self.taking:
            if not self._wait_for_room():
                return None
            for item in self.items:
                self.started += 1
                return self.started - 1, item
            self.end(self.started, None)
            return None

    def _wait_for_room(self) -> bool:
        with self.lock:
            while not (self.closed or self.surplus or self.total is not None or self._has_room()):
                self.room.wait()
            if self.surplus:
                self.surplus -= 1
                return False
            return not self.closed and self.total is None

    def _has_room(self) -> bool:
        few = self.started - self.delivered < self.ahead
        return few and (self._holds_many or len(self._lent) < 2)

    def put(self, number: int, result: Result) -> None:
        with self.lock:
            if not self.closed:
                self.results[number] = result
            self._tell()

    def end(self, total: int, error: BaseException | None) -> None:
        with self.lock:
            if self.total is None or total < self.total:
                self.total, self.error = total, error
            self.room.notify_all()
            self._tell()

    def _tell(self) -> None:
        if self._waiting:  # else the consumer finds it, and news would pile up
            self._waiting = False
            self.news.put(None)

    # -- called by the consumer

    def resize(self, more: int, ahead: int) -> int:
        """Let threads end if ``more`` is negative; return how many have to be started."""
        with self.lock:
            self.ahead, surplus = ahead, self.surplus - more
            self.surplus = max(0, surplus)
            self.room.notify_all()
            return max(0, -surplus)

    def before_wait(self) -> None:
        """Note that the caller requests another result while it holds two."""
        with self.lock:
            if len(self._lent) > 1:
                self._holds_many = True
                self.room.notify_all()

    def poll(self) -> list[Result] | None:
        """Return a list with the next result, an empty list at the end, or None to wait."""
        with self.lock:
            if self.delivered in self.results:
                self.delivered += 1
                return [self.results.pop(self.delivered - 1)]
            if self.delivered == self.total:
                if self.error is not None:
                    raise self.error
                return []
            if self.closed:
                raise WorkerError("reading ahead was closed while a result was waited for")
            self._waiting = True
            return None

    def lend(self, result: Result) -> Result:
        """Return the result, and watch when its parts are deleted."""
        held: dict[int, weakref.ref[Any]] = {}
        for part in self.parts(result):
            ref = weakref.ref(part, partial(self._part_deleted, held))
            held[id(ref)] = ref
        with self.lock:
            if held:
                self._lent.append(held)
            self.room.notify_all()
        return result

    def _part_deleted(self, held: dict[int, weakref.ref[Any]], ref: weakref.ref[Any]) -> None:
        """Note that a part of a result was deleted; may run in any thread."""
        with self.lock:
            held.pop(id(ref), None)
            if not held:
                self._lent = [others for others in self._lent if others]
                self.room.notify_all()

    def close(self) -> None:
        """Ask the threads to end; may be called from any thread, at any time."""
        with self.lock:
            self.closed = True
            self.results.clear()
            self.room.notify_all()
            self.news.put(None)


def _run(
    work: Callable[[Item], Result], queue: _ResultQueue[Item, Result], recorder: Recorder | None
) -> None:
    thread, number = threading.current_thread(), None
    assert isinstance(thread, BackgroundThread)
    try:
        with Work(recorder, thread.name):
            while (taken := queue.take()) is not None:
                number, item = taken
                thread.activity = _Activity(work, item)
                queue.put(number, work(item))
                thread.activity = number = None
                del taken, item  # they may hold the memory of another thread's result
    except BaseException as error:  # noqa: BLE001 - raised when its result is requested
        error.add_note(f"in thread {thread.name}")
        queue.end(queue.started if number is None else number, error)


class _Activity(NamedTuple):
    """What a thread works on; converted to text only for a message."""

    work: Callable[..., object]
    item: object

    def __str__(self) -> str:
        name = getattr(self.work, "__qualname__", "")
        return f"{name}({repr(self.item)[:80]})" if name else str(self.item)
