"""Where the time of a loader goes: probes in its stages, histograms, and a snapshot of both."""

from __future__ import annotations

import heapq
import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, NamedTuple, Self

from torch.profiler import record_function

from penstock.arguments import flag

STAGES: Final = (
    *("plan", "read", "decode", "place", "transform", "collate", "transfer"),
    *("wait", "step"),
)
COLUMNS: Final = (*STAGES, "batches", "samples", "memory")
WAIT, STEP = STAGES.index("wait"), STAGES.index("step")

TICKS: Final = 10**7  # buckets are in units of 100 ns
BUCKETS: Final = 160  # four for each power of two, up to two days
SLOTS: Final = 240  # of time, over the whole run: two neighbours are merged when it gets longer
SPANS: Final = 2000  # kept one by one: the first and the last of a run
STALLS: Final = 20  # the longest
STALL_SECONDS: Final = 0.02
PROBED_SECONDS: Final = 0.0005  # between two requests with probes: they take microseconds


class Histogram:
    """Durations in buckets: constant memory, exact sum and count, quantiles within an eighth.

    >>> durations = Histogram([0.001, 0.002, 0.003, 0.1])
    >>> durations.count, durations.longest, round(durations.quantile(0.5), 4)
    (4, 0.1, 0.0018)
    >>> (durations + durations).count
    8
    """

    __slots__ = ("buckets", "count", "longest", "total")

    def __init__(self, seconds: Iterable[float] = ()) -> None:
        self.count, self.total, self.longest = 0, 0.0, 0.0
        self.buckets = [0] * BUCKETS
        for each in seconds:
            self.add(each)

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration.

        Args:
            seconds: The duration.
            times: How often it is counted.
        """
        self.count += times
        self.total += seconds * times
        if seconds > self.longest:
            self.longest = seconds
        ticks = int(seconds * TICKS)
        shift = ticks.bit_length() - 3  # the first three bits and their place are the bucket
        index = ticks if shift < 0 else (shift << 2) + (ticks >> shift)
        self.buckets[min(max(index, 0), BUCKETS - 1)] += times

    def __add__(self, other: Histogram) -> Histogram:
        merged = Histogram()
        merged.count, merged.total = self.count + other.count, self.total + other.total
        merged.longest = max(self.longest, other.longest)
        merged.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        return merged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def mean(self) -> float:
        """The mean duration; 0 without any."""
        return self.total / max(1, self.count)

    def quantile(self, share: float) -> float:
        """Return the duration that this share of all durations does not exceed.

        Args:
            share: From 0 to 1.
        """
        left = share * self.count
        for index, count in enumerate(self.buckets):
            left -= count
            if count and left <= 0:
                return min(self.longest, (_edge(index) + _edge(index + 1)) / 2 / TICKS)
        return self.longest

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers; `of` makes a histogram of them."""
        filled = [[index, count] for index, count in enumerate(self.buckets) if count]
        return {"count": self.count, "total": self.total, "longest": self.longest} | {
            "buckets": filled
        }

    @classmethod
    def of(cls, figures: Mapping[str, Any]) -> Self:
        """Return the histogram of `to_dict`."""
        made = cls()
        made.count, made.total = int(figures["count"]), float(figures["total"])
        made.longest = float(figures["longest"])
        for index, count in figures["buckets"]:
            made.buckets[min(max(int(index), 0), BUCKETS - 1)] += int(count)
        return made


def _edge(index: int) -> int:
    """Return where a bucket begins, in ticks."""
    return index if index < 4 else (4 + (index & 3)) << ((index >> 2) - 1)


class Span(NamedTuple):
    """A stage that has ended: which, when (`perf_counter`), and how long.

    ``own`` is without the stages inside of it; ``who`` is the thread or worker, empty for the
    caller of the loader; ``what`` is the range of samples that was read.
    """

    stage: str
    begin: float
    seconds: float
    own: float
    who: str
    what: tuple[int, int] | None


class _Thread(threading.local):
    """What the current thread works for."""

    recorder: Recorder | None = None
    who: str = ""
    inner: float = 0.0  # seconds of the stages that ended inside of the current one


_thread = _Thread()


class Probe:
    """A context whose time counts as a stage of the loader that this thread works for.

    A stage inside of another one counts only for itself. Where nothing is recorded, nothing is
    measured.

    Args:
        stage: One of `STAGES`.
        what: The first sample that is read, and one past the last; for the list of stalls.

    >>> recorder = Recorder()
    >>> with recorder.work("worker 0"), Probe("read"):
    ...     pass
    >>> recorder.snapshot().stages["read"].count
    1
    """

    __slots__ = ("_begin", "_outer", "_profiled", "_recorder", "_stage", "_what")

    def __init__(self, stage: str, what: tuple[int, int] | None = None) -> None:
        self._stage, self._what = stage, what

    def __enter__(self) -> Self:
        recorder = self._recorder = _thread.recorder
        if recorder is not None:
            self._outer, _thread.inner = _thread.inner, 0.0
            self._profiled: Any = None
            if recorder.profile:
                self._profiled = record_function(f"penstock.{self._stage}")
                self._profiled.__enter__()
            self._begin = perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        recorder = self._recorder
        if recorder is not None:
            seconds = perf_counter() - self._begin
            own, _thread.inner = seconds - _thread.inner, self._outer + seconds
            recorder.arrivals.append(
                Span(self._stage, self._begin, seconds, own, _thread.who, self._what)
            )
            if self._profiled is not None:
                self._profiled.__exit__(None, None, None)


class Work:
    """A context in which the probes of this thread belong to a recorder; see `Recorder.work`."""

    def __init__(self, recorder: Recorder | None, who: str) -> None:
        self._recorder, self._who = recorder, who

    def __enter__(self) -> None:
        self._outer = _thread.recorder, _thread.who, _thread.inner
        _thread.recorder, _thread.who, _thread.inner = self._recorder, self._who, 0.0

    def __exit__(self, *error: object) -> None:
        _thread.recorder, _thread.who, _thread.inner = self._outer


def current_recorder() -> Recorder | None:
    """Return the recorder of the loader that this thread works for; None if it is off."""
    return _thread.recorder


class Recorder:
    """The measurements of one loader on one rank, in constant memory; ``loader.metrics``.

    Waiting and steps are always measured. The probes of the other stages can be switched off.
    Batches that follow each other within half a millisecond are added up and noted together,
    without the stages in the caller's thread: a probe takes a microsecond. Threads and processes
    only append to ``arrivals``, which needs no lock; the caller's thread adds them up.

    Args:
        on: Whether the probes are on.
        profile: Whether stages are shown by ``torch.profiler``, as ``penstock.read`` and so on.
    """

    def __init__(self, *, on: bool = True, profile: bool = False) -> None:
        self.on, self.profile = flag("on", on), flag("profile", profile)
        self.arrivals: deque[Span] = deque(maxlen=100_000)
        self.started = time.time()
        self._origin = perf_counter()
        self._wait, self._step = Histogram(), Histogram()
        self._stages: dict[str, Histogram] = {}
        self._inside: dict[str, float] = {}  # seconds of stages in the caller's thread
        self._workers: dict[str, list[float]] = {}
        self._first: float | None = None
        self._samples, self._probed = 0, 0.0
        self._delivered = 0.0  # when the last batch was; 0 after a pause
        self._asked = self._next_probe = 0.0
        self._due = True  # the batch is noted on its own
        self._last_step: float | None = None
        self._quick: list[float] = [0, 0.0, 0, 0, 0.0]  # waits and steps: numbers and seconds
        self._width = 1.0  # seconds of a slot
        self._slots: list[list[float]] = []
        self._early: list[Span] = []
        self._late: deque[Span] = deque(maxlen=SPANS)
        self._stalls: list[tuple[float, float, tuple[int, int], tuple[int, int] | None]] = []
        self._last_read: tuple[int, int] | None = None

    @property
    def waited(self) -> float:
        """Seconds that the caller has waited."""
        return self._wait.total + self._quick[1]

    @property
    def waiting(self) -> float:
        """The share of the time that the caller has waited, without the first batch."""
        return share_of(self.waited - (self._first or 0.0), self._step.total + self._quick[4])

    # -- measuring

    def work(self, who: str) -> Work:
        """Return a context in which the probes of this thread are of this recorder.

        Args:
            who: Name of the thread or worker.
        """
        return Work(self, who)

    def request(self) -> bool:
        """Note that a batch is asked for; return whether its stages should be measured.

        They are inside of ``with recorder.work(""):``.
        """
        self._asked = now = perf_counter()
        self._last_step = now - self._delivered if self._delivered else None
        self._due = now >= self._next_probe
        if self._due:
            self._next_probe = now + PROBED_SECONDS
        return self.on and self._due

    def receive(self, samples: int, cursor: tuple[int, int] = (0, 0)) -> None:
        """Note that the batch has arrived, or has failed.

        Args:
            samples: Samples of the batch; 0 if it failed.
            cursor: Its epoch and position, for the list of stalls.
        """
        now = perf_counter()
        self._delivered = now if samples else 0.0
        if self._due or now >= self._next_probe:
            self._settle(now, samples, cursor)
            return
        quick = self._quick  # batches in quick succession are added up, and noted together
        quick[0] += 1
        quick[1] += now - self._asked
        quick[2] += samples
        if self._last_step is not None:
            quick[3] += 1
            quick[4] += self._last_step

    def _settle(self, now: float, samples: int, cursor: tuple[int, int]) -> None:
        """Note the batches that came in quick succession, and this one."""
        waits, waited, some, steps, stepped = self._quick
        self._quick = [0, 0.0, 0, 0, 0.0]
        asked, seconds, step = self._asked, now - self._asked, self._last_step
        self._drain()
        if waits:
            self._wait.add(waited / waits, int(waits))
            self._spread(WAIT, asked - waited, waited, waited)
        if steps:
            self._step.add(stepped / steps, int(steps))
            self._spread(STEP, asked - stepped, stepped, stepped)
        if step is not None:
            self._step.add(step)
            self._spread(STEP, asked - step, step, step)
        self._wait.add(seconds)
        self._spread(WAIT, asked, seconds, seconds)
        if self.on:
            self._probed += seconds if self._due else 0.0
            if step is not None:
                self._keep(Span("step", asked - step, step, step, "", None))
            self._keep(Span("wait", asked, seconds, seconds, "", None))
        if self._first is None:
            self._first = seconds
        elif seconds > STALL_SECONDS:
            stall = (seconds, asked - self._origin, cursor, self._last_read)
            push = heapq.heappush if len(self._stalls) < STALLS else heapq.heappushpop
            push(self._stalls, stall)
        self._samples += samples + int(some)
        slot = self._slot(now)
        slot[-3] += waits + bool(samples)
        slot[-2] += samples + some

    def pause(self) -> None:
        """Note that what follows is not a training step: a validation, or the end of a loop."""
        self._delivered = 0.0

    def note_memory(self, nbytes: int) -> None:
        """Note the memory in use now."""
        slot = self._slot(perf_counter())
        slot[-1] = max(slot[-1], nbytes)

    def _drain(self) -> None:
        """Add up what threads and workers have measured."""
        arrivals, stages = self.arrivals, self._stages
        while arrivals:
            span = arrivals.popleft()
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
        self._drain()
        wait, step, quick = self._wait + Histogram(), self._step + Histogram(), self._quick
        if quick[0]:
            wait.add(quick[1] / quick[0], int(quick[0]))
        if quick[3]:
            step.add(quick[4] / quick[3], int(quick[3]))
        stages = {**self._stages, "wait": wait, "step": step}
        origin = self._origin
        kept = [*self._early, *self._late]
        return Snapshot(
            rank=rank,
            world=world,
            started=self.started,
            seconds=perf_counter() - origin,
            samples=self._samples + int(quick[2]),
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


def halved(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the sums of every two neighbours; of memory, the maximum."""
    pairs = [
        (rows[i], rows[min(i + 1, len(rows) - 1)], i + 1 < len(rows))
        for i in range(0, len(rows), 2)
    ]
    return [added(one, other) if two else list(one) for one, other, two in pairs]


def added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the sum of two rows of figures; of memory, the maximum."""
    sums = [a + b for a, b in zip(one, other, strict=True)]
    return [*sums[:-1], max(one[-1], other[-1])]


def share_of(part: float, rest: float) -> float:
    """Return a part as a share of it and the rest; 0 where both are nothing."""
    return part / (part + rest) if part + rest > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The figures of a loader at a moment: of one rank, or merged over ranks.

    Args:
        rank: The rank; of merged ones, the first.
        world: Number of ranks.
        started: When measuring began, in seconds since 1970.
        seconds: How long it has been measured.
        samples: Samples delivered.
        first: Seconds that the first batch took.
        stages: Durations by stage.
        inside: Seconds of the stages that ran in the caller's thread, while it waited.
        probed: Seconds that were waited in requests whose stages were measured.
        workers: Number of batches or blocks, and seconds, by thread or worker.
        width: Seconds of a slot.
        slots: Figures over time: a row of `COLUMNS` for each slot.
        stalls: The longest waits.
        spans: Stages one by one: stage, begin, seconds, thread, rank.
        settings: Settings of the loader.
        ranks: Figures of each rank.
    """

    rank: int = 0
    world: int = 1
    started: float = 0.0
    seconds: float = 0.0
    samples: int = 0
    first: float = 0.0
    stages: dict[str, Histogram] = field(default_factory=dict)
    inside: dict[str, float] = field(default_factory=dict)
    probed: float = 0.0
    workers: dict[str, list[float]] = field(default_factory=dict)
    width: float = 1.0
    slots: list[list[float]] = field(default_factory=list)
    stalls: list[dict[str, Any]] = field(default_factory=list)
    spans: list[list[Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    ranks: list[dict[str, float]] = field(default_factory=list)

    def of(self, stage: str) -> Histogram:
        """Return the durations of a stage; empty where it was not measured."""
        return self.stages.get(stage) or Histogram()

    @property
    def batches(self) -> int:
        """Batches that were asked for."""
        return self.of("wait").count

    @property
    def waiting(self) -> float:
        """The share of the time that was spent waiting, without the first batch of each rank."""
        return share_of(max(0.0, self.of("wait").total - self.first), self.of("step").total)

    def of_ranks(self) -> list[dict[str, float]]:
        """Return waiting, steps and the first batch of each rank, in seconds."""
        if self.ranks:
            return self.ranks
        own = {"rank": self.rank, "wait": self.of("wait").total, "step": self.of("step").total}
        return [own | {"first": self.first}]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which can be written as JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["stages"] = {name: each.to_dict() for name, each in self.stages.items()}
        return plain

    def json(self) -> str:
        """Return the snapshot as JSON; `of_dict` reads it."""
        return json.dumps(self.to_dict())

    @classmethod
    def of_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the snapshot of `to_dict`."""
        known = {name: plain[name] for name in cls.__dataclass_fields__ if name in plain}
        stages = {name: Histogram.of(each) for name, each in plain["stages"].items()}
        return cls(**{**known, "stages": stages})


def merge(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Return one snapshot of several: of the ranks of a run, or of its sessions.

    Args:
        snapshots: One or more. Moments are counted from the earliest start.
    """
    if len(snapshots) == 1:
        return snapshots[0]
    begin = min(each.started for each in snapshots)
    width = max(each.width for each in snapshots)
    end = max(each.started + each.seconds for each in snapshots) - begin
    while end / width > SLOTS:
        width *= 2
    slots = [[0.0] * len(COLUMNS) for _ in range(int(end / width) + 2)]
    stages: dict[str, Histogram] = {}
    inside: dict[str, float] = {}
    workers: dict[str, list[float]] = {}
    for each in snapshots:
        for name, histogram in each.stages.items():
            stages[name] = stages.get(name, Histogram()) + histogram
        for name, seconds in each.inside.items():
            inside[name] = inside.get(name, 0.0) + seconds
        workers |= {f"rank {each.rank}, {name}": own for name, own in each.workers.items()}
        for number, row in enumerate(each.slots):
            at = min(int((each.started - begin + number * each.width) / width), len(slots) - 1)
            slots[at] = added(slots[at], row)
    moved = [(each, each.started - begin) for each in snapshots]
    stalls = [{**stall, "at": stall["at"] + by} for each, by in moved for stall in each.stalls]
    spans = [[s[0], s[1] + by, *s[2:]] for each, by in moved for s in each.spans]
    return Snapshot(
        rank=min(each.rank for each in snapshots),
        world=max(each.world for each in snapshots),
        started=begin,
        seconds=end,
        samples=sum(each.samples for each in snapshots),
        first=sum(each.first for each in snapshots),
        stages={name: stages[name] for name in STAGES if name in stages},
        inside=inside,
        probed=sum(each.probed for each in snapshots),
        workers=workers,
        width=width,
        slots=slots,
        stalls=sorted(stalls, key=lambda stall: -stall["seconds"])[:STALLS],
        spans=sorted(spans, key=lambda span: span[1]),
        settings=snapshots[0].settings,
        ranks=_by_rank([rank for each in snapshots for rank in each.of_ranks()]),
    )


def _by_rank(figures: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the figures of each rank, added up over sessions."""
    found: dict[float, dict[str, float]] = {}
    for each in figures:
        sums = found.setdefault(each["rank"], dict.fromkeys(each, 0.0))
        sums |= {name: sums[name] + seconds for name, seconds in each.items()}
        sums["rank"] = each["rank"]
    return [found[rank] for rank in sorted(found)]
