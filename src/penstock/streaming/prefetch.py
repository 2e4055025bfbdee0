"""One thread that works a bounded number of items ahead."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Self, TypeVar

from penstock.errors import WorkerError
from penstock.streaming.threads import Servant, dismiss, employ

Item = TypeVar("Item")
Result = TypeVar("Result")


class Prefetched(Iterator[Result], Generic[Result]):
    """``work(item)`` of each item, in order, at most ``ahead`` of them done early by a thread.

    The thread ends when this is closed, dropped or exhausted. An error in it is raised where its
    result is asked for; the results before come out first.

    Args:
        parts: The objects a result is made of. While somebody still holds those of two results,
            the next one is not begun: with the one in use, ``ahead + 1`` are there at most. Who
            keeps more than one on purpose is not held up a second time.

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
        self._belt: _Belt[Result] = _Belt(ahead, parts)
        self._servant = Servant(name, partial(_run, items, work, self._belt), self._belt.close)
        employ([self._servant])
        weakref.finalize(self, self._belt.close).atexit = False

    def __next__(self) -> Result:
        return self._belt.take()

    def close(self) -> None:
        """End the thread, as soon as the work it is at returns."""
        dismiss([self._servant])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(slots=True, eq=False)
class _Belt(Generic[Result]):
    """Where the thread and the consumer meet; the thread holds only this."""

    ahead: int
    parts: Callable[[Result], Iterable[object]]
    changed: threading.Condition = field(default_factory=threading.Condition)
    results: deque[Result] = field(default_factory=deque)
    closed: bool = False
    ended: bool = False
    error: BaseException | None = None
    _lent: list[dict[int, weakref.ref[Any]]] = field(default_factory=list)  # results still held
    _kept: bool = False  # by a consumer who wants to

    # -- the thread

    def wait_for_room(self) -> bool:
        """May the next item be begun? False when nobody wants it any more."""
        with self.changed:
            while not self.closed and not self._has_room():
                self.changed.wait()
            return not self.closed

    def _has_room(self) -> bool:
        return len(self.results) < self.ahead and (self._kept or len(self._lent) < 2)

    def put(self, result: Result) -> None:
        with self.changed:
            if not self.closed:
                self.results.append(result)
            self.changed.notify_all()

    def end(self, error: BaseException | None) -> None:
        with self.changed:
            self.ended, self.error = True, error
            self.changed.notify_all()

    # -- the consumer

    def take(self) -> Result:
        with self.changed:
            if len(self._lent) > 1:
                self._kept = True
                self.changed.notify_all()
            while not (self.results or self.ended or self.closed):
                self.changed.wait()
            if self.results:
                return self._lend(self.results.popleft())
            if self.error is not None:
                raise self.error
            if not self.ended:
                raise WorkerError("reading ahead was closed while a result was waited for")
            raise StopIteration

    def _lend(self, result: Result) -> Result:
        held: dict[int, weakref.ref[Any]] = {}
        for part in self.parts(result):
            ref = weakref.ref(part, partial(self._gone, held))
            held[id(ref)] = ref
        if held:
            self._lent.append(held)
        self.changed.notify_all()
        return result

    def _gone(self, held: dict[int, weakref.ref[Any]], ref: weakref.ref[Any]) -> None:
        """A part of a result is no longer held by anybody; may run in any thread."""
        with self.changed:
            held.pop(id(ref), None)
            if not held:
                self._lent = [others for others in self._lent if others]
                self.changed.notify_all()

    def close(self) -> None:
        """Nobody wants a result any more; may be called by any thread, at any moment."""
        with self.changed:
            self.closed = True
            self.results.clear()
            self.changed.notify_all()


def _run(items: Iterable[Item], work: Callable[[Item], Result], belt: _Belt[Result]) -> None:
    following = iter(items)
    try:
        while belt.wait_for_room():
            for item in following:
                belt.put(work(item))
                del item  # nor what it holds: it may be a result of another thread
                break
            else:
                return belt.end(None)
    except BaseException as error:  # noqa: BLE001 - re-raised where its result is asked for
        error.add_note(f"in thread {threading.current_thread().name}")
        belt.end(error)
