"""Read ahead: threads that fill the next round's slots while this one's batches are used."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from penstock.errors import WorkerError
from penstock.order import Indices
from penstock.streaming.memory import Slots
from penstock.streaming.placing import Placer
from penstock.streaming.segments import BlockRead, Round
from penstock.streaming.threads import Servant, dismiss, employ


class Pipeline:
    """Rounds read into slots by threads; a batch's slot is had as soon as its rounds are in place.

    Threads end when the pipeline is closed, dropped, or the interpreter exits. An error in one of
    them is raised where its round's batches are asked for; all batches before come out first.
    """

    def __init__(
        self,
        rounds: Iterator[Round],
        slots: Slots,
        placer: Callable[[], Placer],
        *,
        threads: int,
        name: str,
    ) -> None:
        self._ready = self._taken = 0  # batches complete, and handed over
        self._desk, self._free = _Desk(rounds, slots), slots.free
        self._readers = [
            Servant(f"{name}-{i}", partial(_work, self._desk, placer()), self._desk.close)
            for i in range(threads)
        ]
        employ(self._readers)
        weakref.finalize(self, self._desk.close).atexit = False

    def close(self) -> None:
        """End the threads, as soon as the reads they are in return; unused slots go back."""
        dismiss(self._readers)
        self._desk.give_back()

    @property
    def is_ready(self) -> bool:
        """Would `next_slot` give one at once?"""
        return self._taken < self._ready

    def next_slot(self) -> int:
        """The slot of the next batch; blocks until it is in place."""
        batch = self._taken
        while batch >= self._ready:
            self._ready = self._desk.next_ready()
        self._taken = batch + 1
        if 0 < self._desk.wanted <= len(self._free):
            self._desk.make_room()
        return self._desk.slot_of.pop(batch)


@dataclass(slots=True, eq=False)
class _Open:
    """A round being read: its plan, the rows of the slots it fills, and what is still to come."""

    plan: Round
    targets: Indices
    left: int
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Desk:
    """Where readers and the consumer meet; readers hold it, so that the pipeline can be dropped."""

    rounds: Iterator[Round]
    slots: Slots
    work: threading.Condition = field(init=False)  # for readers: there may be some, or the end
    ready: threading.Condition = field(init=False)  # for the consumer: a round may be, or an error
    closed: bool = False
    error: BaseException | None = None  # of the plan itself
    _open: deque[_Open] = field(default_factory=deque)
    _reads: deque[tuple[_Open, BlockRead]] = field(default_factory=deque)
    slot_of: dict[int, int] = field(default_factory=dict)  # batch -> slot, until handed over
    _planner: threading.Lock = field(default_factory=threading.Lock)  # of one that plans a round
    _next: Round | None = None
    wanted: int = 0  # free slots that readers wait for

    def __post_init__(self) -> None:
        lock = threading.RLock()
        self.work, self.ready = threading.Condition(lock), threading.Condition(lock)

    # -- readers

    def take(self) -> tuple[_Open, BlockRead] | None:
        """The next block to read, in plan order; None when it is over."""
        with self.work:
            while not self.closed:
                if self._reads:
                    return self._reads.popleft()
                if not self._open_round():
                    self.work.wait()
            return None

    def _open_round(self) -> bool:
        """Give the next round its slots, if there are enough free ones."""
        with self._planner:
            plan = self._next = self._next or next(self.rounds)
        new = [b for b in range(plan.first, plan.stop) if b not in self.slot_of]
        if len(self.slots.free) < len(new):
            self.wanted = len(new)
            return False
        self.slot_of.update(zip(new, self.slots.take(len(new)), strict=True))
        slots = [self.slot_of[batch] for batch in range(plan.first, plan.stop)]
        opened = _Open(plan, self.slots.rows_of(slots)[plan.rows], len(plan.reads))
        self._next, self.wanted = None, 0
        self._open.append(opened)
        self._reads.extend((opened, read) for read in plan.reads)
        self.work.notify_all()
        if not plan.reads:  # none of it is this rank's
            self.ready.notify_all()
        return True

    def plan_ahead(self, opened: _Open) -> None:
        """Plan the next round while others read: at its turn nobody has to wait for that.

        In the middle of a round: at its begin the consumer is busy with the one before.
        """
        early = 2 * len(self._reads) > len(opened.plan.reads)
        if self._next is None and not early and self._planner.acquire(blocking=False):
            try:
                self._next = self._next or next(self.rounds)
            finally:
                self._planner.release()

    def done(self, opened: _Open, error: BaseException | None) -> None:
        """A block is in place, or could not be read."""
        with self.work:
            opened.left -= 1
            opened.error = opened.error or error
            if opened.left == 0 or error is not None:
                self.ready.notify_all()

    def close(self) -> None:
        """Nobody wants a batch any more; may be called by any thread, at any moment."""
        with self.work:
            self.closed = True
            self.work.notify_all()
            self.ready.notify_all()

    # -- the consumer

    def next_ready(self) -> int:
        """Batches that are complete with the next round; blocks until it is in place."""
        with self.ready:
            self.work.notify_all()  # whatever is free by now, readers may have
            while not (self._open and (self._open[0].left == 0 or self._open[0].error)):
                if self.error is not None:
                    raise self.error
                if self.closed:
                    raise WorkerError("the stream was closed while a batch was waited for")
                self.ready.wait()
            if self._open[0].error is not None:
                raise self._open[0].error
            return self._open.popleft().plan.ready

    def make_room(self) -> None:
        """Wake readers that wait for slots."""
        with self.work:
            self.work.notify_all()

    def give_back(self) -> None:
        """The slots of batches that nobody will ask for; no reader lives any more."""
        while self.slot_of:
            self.slots.free.append(self.slot_of.popitem()[1])


def _work(desk: _Desk, placer: Placer) -> None:
    try:
        while (work := desk.take()) is not None:
            desk.done(work[0], _read(placer, *work))
            desk.plan_ahead(work[0])
            del work  # the round's plan is not kept while the next one is waited for
    except BaseException as error:  # noqa: BLE001 - re-raised where a batch is asked for
        with desk.ready:
            desk.error = error
            desk.ready.notify_all()


def _read(placer: Placer, opened: _Open, read: BlockRead) -> BaseException | None:
    try:
        placer.place(read, opened.targets)
    except BaseException as error:  # noqa: BLE001 - re-raised where its batch is asked for
        name = threading.current_thread().name
        error.add_note(f"reading samples {read.start}:{read.start + read.count} in {name}")
        return error
    return None
