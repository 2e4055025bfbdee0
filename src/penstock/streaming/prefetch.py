"""A background thread that computes a bounded number of results ahead."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Self, TypeVar

from penstock.errors import WorkerError
from penstock.metrics import Recorder, Work, current_recorder
from penstock.streaming.threads import (
    LOOK_SECONDS,
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

    The thread ends when the iterator is closed, garbage-collected or exhausted. An error in the
    thread is raised when its result is requested; the results before it are delivered first.

    Args:
        items: The items.
        work: Computes the result of an item.
        ahead: Results to compute before they are requested.
        name: Name of the thread.
        parts: Returns the objects of a result that hold memory. While the caller holds those of
            two results, the next one is not started, so at most ``ahead + 1`` exist. A caller
            that requests a result while it holds two is assumed to do so on purpose, and is not
            delayed again.

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
    ) -> None:
        self._queue: _ResultQueue[Result] = _ResultQueue(ahead, parts)
        run = partial(_run, items, work, self._queue, current_recorder())
        self._threads = [BackgroundThread(name, run, self._queue.close)]
        start_all(self._threads)
        weakref.finalize(self, request_stop_all, self._threads).atexit = False

    def __next__(self) -> Result:
        check_process(self._threads)  # before a lock is taken, which a child could never release
        queue = self._queue
        queue.before_wait()
        found = wait_for(queue.news, queue.poll, threads=self._threads, timeout=0)
        if not found:
            raise StopIteration
        return queue.lend(found.pop())

    def close(self) -> None:
        """Stop the thread when its current work returns; see `threads.STOP_SECONDS`."""
        stop_or_warn(self._threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(slots=True, eq=False)
class _ResultQueue(Generic[Result]):
    """Results between the thread and the consumer; the thread refers only to this.

    The lock is taken by ``with lock``, never by ``with room``: an interrupt inside of
    `threading.Condition` can leave its lock locked forever.
    """

    ahead: int
    parts: Callable[[Result], Iterable[object]]
    lock: threading.RLock = field(default_factory=threading.RLock)
    room: threading.Condition = field(init=False)  # for the thread: it may continue
    news: SimpleQueue[None] = field(default_factory=SimpleQueue)  # for the consumer
    results: deque[Result] = field(default_factory=deque)
    closed: bool = False
    ended: bool = False
    error: BaseException | None = None
    _lent: list[dict[int, weakref.ref[Any]]] = field(default_factory=list)  # held by the caller
    _holds_many: bool = False  # the caller holds more than one on purpose

    def __post_init__(self) -> None:
        self.room = threading.Condition(self.lock)

    # -- called by the thread

    def wait_for_room(self) -> bool:
        """Wait until the next item may be started; return False if the queue was closed."""
        with self.lock:
            while not self.closed and not self._has_room():
                self.room.wait(LOOK_SECONDS)
            return not self.closed

    def _has_room(self) -> bool:
        return len(self.results) < self.ahead and (self._holds_many or len(self._lent) < 2)

    def put(self, result: Result) -> None:
        with self.lock:
            if not self.closed:
                self.results.append(result)
            self.news.put(None)

    def end(self, error: BaseException | None) -> None:
        with self.lock:
            self.ended, self.error = True, error
            self.news.put(None)

    # -- called by the consumer

    def before_wait(self) -> None:
        """Note that the caller requests another result while it holds two."""
        with self.lock:
            if len(self._lent) > 1:
                self._holds_many = True
                self.room.notify_all()

    def poll(self) -> list[Result] | None:
        """Return a list with the next result, an empty list at the end, or None to wait."""
        with self.lock:
            if self.results:
                return [self.results.popleft()]
            if self.error is not None:
                raise self.error
            if self.ended:
                return []
            if self.closed:
                raise WorkerError("the iterator was closed while waiting for a result")
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
        """Ask the thread to end; may be called from any thread, at any time."""
        with self.lock:
            self.closed = True
            self.results.clear()
            self.room.notify_all()
            self.news.put(None)


def _run(
    items: Iterable[Item],
    work: Callable[[Item], Result],
    queue: _ResultQueue[Result],
    recorder: Recorder | None,
) -> None:
    thread, following = threading.current_thread(), iter(items)
    assert isinstance(thread, BackgroundThread)
    try:
        with Work(recorder, thread.name):
            while queue.wait_for_room():
                for item in following:
                    thread.activity = _Activity(work, item)
                    queue.put(work(item))
                    thread.activity = None
                    del item  # it may hold the memory of another thread's result
                    break
                else:
                    return queue.end(None)
    except BaseException as error:  # noqa: BLE001 - raised when its result is requested
        error.add_note(f"in thread {thread.name}")
        queue.end(error)


class _Activity(NamedTuple):
    """What a thread works on; converted to text only for a message."""

    work: Callable[..., object]
    item: object

    def __str__(self) -> str:
        name = getattr(self.work, "__qualname__", type(self.work).__name__)
        return f"{name}({repr(self.item)[:80]})"
