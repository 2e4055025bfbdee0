"""Where the time of a loader goes: probes in its stages, histograms, and a snapshot of both."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple, Self, TypeVar

from penstock.arguments import flag
from penstock.metrics.snapshot import (
    COLUMNS,
    MAX_ARRIVALS,
    PROBED_SECONDS,
    SETTLED_SECONDS,
    SLOTS,
    SPANS,
    STAGES,
    STALL_SECONDS,
    STALLS,
    STEP,
    WAIT,
    Base,
    Histogram,
    Noted,
    Place,
    Quick,
    Snapshot,
    Sums,
    halved,
    share_of,
    summed,
)

T = TypeVar("T")


class Span(NamedTuple):
    """A stage that has ended.

    Args:
        stage: Its name.
        begin: When it began, by `perf_counter`.
        seconds: How long it took.
        own: Seconds without the stages inside of it.
        who: The thread or worker, empty for the caller of the loader.
        what: The range of samples that was read; None where that is unknown.
    """

    stage: str
    begin: float
    seconds: float
    own: float
    who: str
    what: tuple[int, int] | None


class _State:
    """The recorder that a thread works for, and the state of its probes."""

    __slots__ = ("inner", "next_read", "recorder", "skips", "who")

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.who = ""
        self.inner = 0.0  # seconds of the stages that ended inside of the current one
        self.skips = False  # the read, and what follows it up to the next one, is not measured
        self.next_read = 0.0  # when a read is measured again


class _Thread(threading.local):
    def __init__(self) -> None:
        self.state = _State()  # one object: attributes of a `threading.local` are slow


_thread = _Thread()


class Probe:
    """A context whose time counts as a stage of the loader that this thread works for.

    A stage inside of another one counts only for itself. Without a recorder, nothing is measured.
    Of the short reads of a thread, one per `PROBED_SECONDS` is recorded, with all stages up to the
    next read, so that shares are correct and probes cost about one percent of the time.

    Args:
        stage: One of `STAGES`.
        what: The first sample that is read, and one past the last; for the list of stalls.

    >>> recorder = Recorder()
    >>> with recorder.work("worker 0"), Probe("read"):
    ...     pass
    >>> recorder.snapshot().stages["read"].count
    1
    """

    __slots__ = ("_begin", "_outer", "_profiled", "_recorder", "_stage", "_state", "_what")

    def __init__(self, stage: str, what: tuple[int, int] | None = None) -> None:
        self._stage, self._what = stage, what

    def __enter__(self) -> Self:
        state = _thread.state
        recorder = self._recorder = state.recorder
        if recorder is None:
            return self
        self._state = state
        self._begin = begin = perf_counter()
        if self._stage == "read" and state.who:
            state.skips = begin < state.next_read
            if not state.skips:
                state.next_read = begin + PROBED_SECONDS
        self._outer, state.inner = state.inner, 0.0
        self._profiled: Any = None
        if recorder.profile:
            from torch.profiler import record_function  # sources have probes, but no torch

            self._profiled = record_function(f"penstock.{self._stage}")
            self._profiled.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        state, seconds = self._state, perf_counter() - self._begin
        own, state.inner = seconds - state.inner, self._outer + seconds
        if not state.skips or seconds > PROBED_SECONDS:
            recorder.arrivals.append(
                Span(self._stage, self._begin, seconds, own, state.who, self._what)
            )
        if self._profiled is not None:
            self._profiled.__exit__(None, None, None)


class Work:
    """A context in which the probes of this thread belong to a recorder; see `Recorder.work`.

    Args:
        recorder: The recorder; None measures nothing.
        who: Name of the thread or worker, for reports; empty for the caller of the loader.
    """

    def __init__(self, recorder: Recorder | None, who: str) -> None:
        self._recorder, self._who = recorder, who

    def __enter__(self) -> None:
        state = _thread.state
        self._outer = state.recorder, state.who, state.inner, state.skips
        state.recorder, state.who, state.inner, state.skips = self._recorder, self._who, 0.0, False

    def __exit__(self, *error: object) -> None:
        state = _thread.state
        state.recorder, state.who, state.inner, state.skips = self._outer


def current_recorder() -> Recorder | None:
    """Return the recorder of the loader that this thread works for; None if it is off."""
    return _thread.state.recorder


class Recorder:
    """The measurements of one loader on one rank, in constant memory; ``loader.metrics``.

    Most batches are only added to sums. One batch per `PROBED_SECONDS` is recorded with its stages.
    Recorded batches are entered into histograms and slots together, every `SETTLED_SECONDS`,
    because code that runs rarely is slow. Threads and processes only append to ``arrivals``, which
    needs no lock.

    Args:
        on: Whether anything is measured. May be changed at any time.
        profile: Whether stages are shown by ``torch.profiler``, as ``penstock.read`` and so on.
    """

    def __init__(self, *, on: bool = True, profile: bool = False) -> None:
        self.arrivals: deque[Span] = deque(maxlen=100_000)
        self.started = time.time()
        self._origin = perf_counter()
        self._wait, self._step = Histogram(), Histogram()
        self._stages: dict[str, Histogram] = {}
        self._inside: dict[str, float] = {}  # seconds of stages in the caller's thread
        self._workers: dict[str, list[float]] = {}
        self.place: Place | None = None  # of the last batch
        # for batches that a loader adds itself; it sets ``place``, too
        self.quick: Quick = Base(Sums(), 0, True), 0, 0.0, 0.0, 0.0, 0.0
        self.samples = 0  # of each of them
        self._noted: list[Noted] = []
        self._settled = Sums()  # what was entered
        self._first: float | None = None
        self._probed = 0.0
        self._asked = self.next_probe = self._next_settling = 0.0
        self._width = 1.0  # seconds of a slot
        self._slots: list[list[float]] = []
        self._early: list[Span] = []
        self._late: deque[Span] = deque(maxlen=SPANS)
        self._stalls: list[tuple[float, float, tuple[int, int], tuple[int, int] | None]] = []
        self._last_read: tuple[int, int] | None = None
        self.on, self.profile = on, flag("profile", profile)

    @property
    def on(self) -> bool:
        """Whether anything is measured."""
        return self.active

    @on.setter
    def on(self, on: bool) -> None:
        self.active = flag("on", on)  # what a loader reads for every batch
        self._asked = 0.0
        self.pause()

    @property
    def cursor(self) -> tuple[int, int] | None:
        """Epoch and position of the last batch."""
        at = self.place
        return at if at is None or isinstance(at, tuple) else (at.epoch, at.position)

    @property
    def sums(self) -> Sums:
        """Batches, samples, steps, and the seconds of waiting and of steps so far.

        They never decrease, and any thread may read them.
        """
        return summed(self.quick)

    @property
    def last_step(self) -> float | None:
        """Seconds of the step before the last request; None if there was none."""
        return self.quick[-1] or None

    @property
    def waiting(self) -> float:
        """The share of the time that the caller has waited, without the first batch."""
        return share_of(self.sums.waited - (self._first or 0.0), self.sums.stepped)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of each stage so far; may be called in any thread."""
        return {name: stage.total for name, stage in [*self._stages.items()]}

    # -- measuring

    def work(self, who: str) -> Work:
        """Return a context in which the probes of this thread belong to this recorder.

        Args:
            who: Name of the thread or worker.
        """
        return Work(self if self.active else None, who)

    def request(self) -> bool:
        """Note that a batch is requested; return whether its stages should be measured.

        They are inside of ``with recorder.work(""):``. Call it only if the recorder is on.
        """
        self._asked = now = perf_counter()
        return now >= self.next_probe

    def receive(self, samples: int, cursor: Place | None = None) -> float:
        """Note that the batch has arrived, or has failed; return the seconds of waiting for it.

        Args:
            samples: Samples of the batch; 0 if it failed.
            cursor: Its epoch and position, or an object that has both; None if they are unknown.
        """
        return self.arrived(self._asked, samples, cursor) if self._asked else 0.0

    def arrived(self, asked: float, samples: int, cursor: Place | None) -> float:
        """Note a batch that has arrived, or has failed, as `receive` does, in one call.

        A loader adds batches to ``quick`` itself, without a call, if they are neither noted nor
        slow nor of another number of ``samples``.

        Args:
            asked: When it was requested, by `perf_counter`. At ``next_probe`` or later, its stages
                are measured.
            samples: As for `receive`.
            cursor: As for `receive`.
        """
        now = perf_counter()
        if not self.active:  # switched off in the meantime
            return 0.0
        if samples != self.samples:
            self._begin(samples, self.quick[-2])
        base, batches, total, stepped, before, _ = self.quick
        waited, step = now - asked, asked - before if before else 0.0
        self.quick = base, batches + 1, total + waited, stepped + step, now, step
        if samples:
            self.place = cursor
        else:
            self.pause()
        if asked >= self.next_probe or waited > STALL_SECONDS:
            self._note(asked, now, samples)
        return waited

    def _begin(self, samples: int, before: float) -> None:
        """Begin a new base, for batches with this number of samples."""
        self.samples = samples
        base = Base(summed(self.quick), samples, not before)
        self.quick = base, 0, 0.0, 0.0, before, self.quick[-1]

    def _note(self, asked: float, now: float, samples: int) -> None:
        """Note the batch that was added last on its own."""
        probed = asked >= self.next_probe
        self._noted.append(
            Noted(asked, now - asked, self.last_step, samples, self.cursor, probed, self.sums)
        )
        if probed:
            self.next_probe = asked + PROBED_SECONDS
        if self._first is None:
            self._first = now - asked
        if now > self._next_settling or len(self.arrivals) > MAX_ARRIVALS:
            self._next_settling = now + SETTLED_SECONDS
            self._settle()

    def timed(self, work: Callable[[], T], samples: int, cursor: Place | None = None) -> T:
        """Return ``work()``, which is a batch, and note how long that took.

        Args:
            work: Returns the batch, or raises.
            samples: Samples of the batch.
            cursor: As for `receive`.
        """
        if not self.active:
            return work()
        received = 0
        try:
            if self.request():
                with self.work(""):
                    batch = work()
            else:
                batch = work()
            received = samples
            return batch
        finally:
            self.receive(received, cursor)

    def _settle(self) -> None:
        """Enter what was noted, and what threads and workers have measured, in order of time."""
        arrivals = self.arrivals
        for noted in self._noted:
            end = noted.asked + noted.waited
            while arrivals and arrivals[0].begin + arrivals[0].seconds <= end:
                self._enter_stage(arrivals.popleft())
            self._enter(noted)
        self._noted.clear()
        while arrivals:
            self._enter_stage(arrivals.popleft())

    def _enter(self, noted: Noted) -> None:
        """Enter a batch, and those before it that were only added up."""
        asked, seconds, step = noted[:3]
        quick, self._settled = noted.sums.since(self._settled), noted.sums
        batches, steps = quick.batches - 1, quick.steps - (step is not None)
        if batches:
            waited = max(0.0, quick.waited - seconds)
            self._wait.add(waited / batches, batches)
            self._spread(WAIT, asked - waited, waited, waited)
        if steps:
            stepped = max(0.0, quick.stepped - (step or 0.0))
            self._step.add(stepped / steps, steps)
            self._spread(STEP, asked - stepped, stepped, stepped)
        if step is not None:
            self._step.add(step)
            self._spread(STEP, asked - step, step, step)
            self._keep(Span("step", asked - step, step, step, "", None))
        self._wait.add(seconds)
        self._spread(WAIT, asked, seconds, seconds)
        self._keep(Span("wait", asked, seconds, seconds, "", None))
        self._probed += seconds if noted.probed else 0.0
        if seconds > STALL_SECONDS and self._wait.count > 1:
            stall = (seconds, asked - self._origin, noted.cursor or (0, 0), self._last_read)
            push = heapq.heappush if len(self._stalls) < STALLS else heapq.heappushpop
            push(self._stalls, stall)
        slot = self._slot(asked + seconds)
        slot[-3] += batches + bool(noted.samples)
        slot[-2] += quick.samples

    def pause(self) -> None:
        """Note that what follows is not a training step: a validation, or the end of a loop."""
        self._begin(self.samples, 0.0)

    def note_memory(self, nbytes: int) -> None:
        """Note the memory in use now."""
        slot = self._slot(perf_counter())
        slot[-1] = max(slot[-1], nbytes)

    def _enter_stage(self, span: Span) -> None:
        """Enter a stage that a thread or a worker has measured."""
        stages = self._stages
        if span.stage not in stages:
            stages[span.stage] = Histogram()
        stages[span.stage].add(span.own)
        if not span.who:
            self._inside[span.stage] = self._inside.get(span.stage, 0.0) + span.own
        elif span.stage in ("read", "collate"):
            worker = self._workers.setdefault(span.who, [0, 0.0])
            worker[0] += span.stage == "read"
            worker[1] += span.own
        if span.what is not None:
            self._last_read = span.what
        self._spread(STAGES.index(span.stage), span.begin, span.seconds, span.own)
        self._keep(span)

    def _keep(self, span: Span) -> None:
        if len(self._early) < SPANS:
            self._early.append(span)
        else:
            self._late.append(span)

    def _slot(self, now: float) -> list[float]:
        """Return the row of figures of a moment."""
        at = max(0, int((now - self._origin) / self._width))
        while at >= SLOTS:
            self._slots, self._width = halved(self._slots), self._width * 2
            at //= 2
        while at >= len(self._slots):
            self._slots.append([0.0] * len(COLUMNS))
        return self._slots[at]

    def _spread(self, column: int, begin: float, seconds: float, own: float) -> None:
        """Add the time of a stage to the slots it took place in."""
        end = begin + seconds
        last = self._slot(end)
        if seconds < self._width / 4:  # as most are
            last[column] += own
            return
        at = begin
        while at < end:
            into = min(
                end, self._origin + (int((at - self._origin) / self._width) + 1) * self._width
            )
            self._slot(at)[column] += own * (into - at) / seconds
            at = max(into, at + 1e-6)

    # -- reading

    def snapshot(
        self, *, rank: int = 0, world: int = 1, settings: Mapping[str, Any] | None = None
    ) -> Snapshot:
        """Return all figures so far.

        Args:
            rank: This rank.
            world: Number of ranks.
            settings: Settings of the loader that a verdict can refer to.
        """
        self._settle()
        wait, step = self._wait + Histogram(), self._step + Histogram()
        sums = self.sums
        quick = sums.since(self._settled)
        if quick.batches:
            wait.add(quick.waited / quick.batches, quick.batches)
        if quick.steps:
            step.add(quick.stepped / quick.steps, quick.steps)
        stages = {**self._stages, "wait": wait, "step": step}
        origin = self._origin
        kept = [*self._early, *self._late]
        return Snapshot(
            rank=rank,
            world=world,
            started=self.started,
            seconds=perf_counter() - origin,
            samples=sums.samples,
            first=self._first or 0.0,
            stages={name: stages[name] + Histogram() for name in STAGES if name in stages},
            inside=dict(self._inside),
            probed=self._probed,
            workers={name: list(each) for name, each in self._workers.items()},
            width=self._width,
            slots=[list(row) for row in self._slots],
            stalls=[
                {"seconds": seconds, "at": at, "rank": rank, "epoch": cursor[0]}
                | {"position": cursor[1], "samples": None if what is None else list(what)}
                for seconds, at, cursor, what in sorted(self._stalls, reverse=True)
            ],
            spans=[[s.stage, s.begin - origin, s.seconds, s.who, rank] for s in kept],
            settings=dict(settings or {}),
        )
