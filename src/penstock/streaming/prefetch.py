"""One thread that works a bounded number of items ahead."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from penstock.errors import WorkerError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Prefetched(Iterator[Result], Generic[Result]):
    """``work(item)`` of each item, in order, at most ``ahead`` of them done early by a thread.

    The thread ends when this is closed, dropped or exhausted. An error in it is raised where its
    result is asked for; the results before come out first.

    >>> with Prefetched(range(3), lambda x: x * x, ahead=2, name="squares") as early:
    ...     list(early)
    [0, 1, 4]
    """

    def __init__(
        self, items: Iterable[Item], work: Callable[[Item], Result], *, ahead: int, name: str
    ) -> None:
        self._belt: _Belt[Result] = _Belt(ahead)
        thread = threading.Thread(
            target=_run, args=(items, work, self._belt), name=f"penstock-{name}", daemon=True
        )
        thread.start()
        self.close = weakref.finalize(self, _end, self._belt, thread)

    def __next__(self) -> Result:
        return self._belt.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(slots=True, eq=False)
class _Belt(Generic[Result]):
    """Where the thread and the consumer meet; the thread holds only this."""

    room: int  # results that may still be begun
    changed: threading.Condition = field(default_factory=threading.Condition)
    results: deque[Result] = field(default_factory=deque)
    closed: bool = False
    ended: bool = False
    error: BaseException | None = None

    def wait_for_room(self) -> bool:
        """May the next item be begun? False when nobody wants it any more."""
        with self.changed:
            while self.room == 0 and not self.closed:
                self.changed.wait()
            self.room -= 1
            return not self.closed

    def put(self, result: Result) -> None:
        with self.changed:
            self.results.append(result)
            self.changed.notify_all()

    def end(self, error: BaseException | None) -> None:
        with self.changed:
            self.ended, self.error = True, error
            self.changed.notify_all()

    def take(self) -> Result:
        with self.changed:
            while not (self.results or self.ended or self.closed):
                self.changed.wait()
            if self.results:
                self.room += 1
                self.changed.notify_all()
                return self.results.popleft()
            if self.error is not None:
                raise self.error
            if not self.ended:
                raise WorkerError("reading ahead was closed while a result was waited for")
            raise StopIteration


def _run(items: Iterable[Item], work: Callable[[Item], Result], belt: _Belt[Result]) -> None:
    try:
        for item in items:
            if not belt.wait_for_room():
                return
            belt.put(work(item))
        belt.end(None)
    except BaseException as error:  # noqa: BLE001 - re-raised where its result is asked for
        error.add_note(f"in thread {threading.current_thread().name}")
        belt.end(error)


def _end(belt: _Belt[Result], thread: threading.Thread) -> None:
    with belt.changed:
        belt.closed = True
        belt.results.clear()
        belt.changed.notify_all()
    if thread is not threading.current_thread():
        thread.join()
