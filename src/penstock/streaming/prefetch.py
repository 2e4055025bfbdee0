"""One thread that works a bounded number of items ahead."""

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
    """``work(item)`` of each item, in order, at most ``ahead`` of them done early by a thread.

    The thread ends when this is closed, dropped or exhausted. An error in it is raised where its
    result is asked for; the results before come out first.

    Args:
        items: What is worked on.
        work: Makes a result of an item.
        ahead: Results that are made before they are asked for.
        name: Of the thread.
        parts: The objects a result is made of. While the caller still holds those of two results,
            the next one is not begun: with the one in use, ``ahead + 1`` are there at most. A
            caller that keeps more than one on purpose is not held up a second time.

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
        run = partial(_run, items, work, self._queue)
        self._threads = [BackgroundThread(name, run, self._queue.close)]
        start_all(self._threads)
        weakref.finalize(self, request_stop_all, self._threads).atexit = False

    def __next__(self) -> Result:
        check_process(self._threads)  # before a lock is taken: nobody may release it in a child
        queue = self._queue
        queue.before_wait()
        found = wait_for(queue.news, queue.poll, threads=self._threads, timeout=0)
        if not found:
            raise StopIteration
        return queue.lend(found.pop())

    def close(self) -> None:
        """End the thread, as soon as the work it is at returns; see `threads.STOP_SECONDS`."""
        stop_or_warn(self._threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(slots=True, eq=False)
class _ResultQueue(Generic[Result]):
    """Where the thread and the consumer meet; the thread holds only this.

    The lock is taken by ``with`` directly, not through its condition: in between, an interrupt
    could leave it taken for ever.
    """

    ahead: int
    parts: Callable[[Result], Iterable[object]]
    lock: threading.RLock = field(default_factory=threading.RLock)
    room: threading.Condition = field(init=False)  # for the thread: there may be some, or the end
    news: SimpleQueue[None] = field(default_factory=SimpleQueue)  # for the consumer
    results: deque[Result] = field(default_factory=deque)
    closed: bool = False
    ended: bool = False
    error: BaseException | None = None
    _lent: list[dict[int, weakref.ref[Any]]] = field(default_factory=list)  # results still held
    _kept: bool = False  # by a caller that means to

    def __post_init__(self) -> None:
        self.room = threading.Condition(self.lock)

    # -- the thread

    def wait_for_room(self) -> bool:
        """May the next item be begun? False when nobody wants it any more."""
        with self.lock:
            while not self.closed and not self._has_room():
                self.room.wait()
            return not self.closed

    def _has_room(self) -> bool:
        return len(self.results) < self.ahead and (self._kept or len(self._lent) < 2)

    def put(self, result: Result) -> None:
        with self.lock:
            if not self.closed:
                self.results.append(result)
            self.news.put(None)

    def end(self, error: BaseException | None) -> None:
        with self.lock:
            self.ended, self.error = True, error
            self.news.put(None)

    # -- the consumer

    def before_wait(self) -> None:
        """A caller that asks for a result while it holds two keeps them on purpose."""
        with self.lock:
            if len(self._lent) > 1:
                self._kept = True
                self.room.notify_all()

    def poll(self) -> list[Result] | None:
        """The next result, in a list; an empty one at the end; None while it is being made."""
        with self.lock:
            if self.results:
                return [self.results.popleft()]
            if self.error is not None:
                raise self.error
            if self.ended:
                return []
            if self.closed:
                raise WorkerError("reading ahead was closed while a result was waited for")
            return None

    def lend(self, result: Result) -> Result:
        """Hand a result over, and note when its parts are no longer held."""
        held: dict[int, weakref.ref[Any]] = {}
        for part in self.parts(result):
            ref = weakref.ref(part, partial(self._gone, held))
            held[id(ref)] = ref
        with self.lock:
            if held:
                self._lent.append(held)
            self.room.notify_all()
        return result

    def _gone(self, held: dict[int, weakref.ref[Any]], ref: weakref.ref[Any]) -> None:
        """A part of a result is no longer held by anybody; may run in any thread."""
        with self.lock:
            held.pop(id(ref), None)
            if not held:
                self._lent = [others for others in self._lent if others]
                self.room.notify_all()

    def close(self) -> None:
        """Nobody wants a result any more; may be called by any thread, at any moment."""
        with self.lock:
            self.closed = True
            self.results.clear()
            self.room.notify_all()
            self.news.put(None)


def _run(
    items: Iterable[Item], work: Callable[[Item], Result], queue: _ResultQueue[Result]
) -> None:
    thread, following = threading.current_thread(), iter(items)
    assert isinstance(thread, BackgroundThread)
    try:
        while queue.wait_for_room():
            for item in following:
                thread.activity = _Activity(work, item)
                queue.put(work(item))
                thread.activity = None
                del item  # nor what it holds: it may be a result of another thread
                break
            else:
                return queue.end(None)
    except BaseException as error:  # noqa: BLE001 - re-raised where its result is asked for
        error.add_note(f"in thread {thread.name}")
        queue.end(error)


class _Activity(NamedTuple):
    """What a thread works on; put into words only for a message."""

    work: Callable[..., object]
    item: object

    def __str__(self) -> str:
        name = getattr(self.work, "__qualname__", type(self.work).__name__)
        return f"{name}({repr(self.item)[:80]})"
