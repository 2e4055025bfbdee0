"""The figures of a loader: histograms of its stages, and a snapshot that can be merged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias

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
PROBED_SECONDS: Final = 0.025  # between two requests or reads with probes: microseconds each
MAX_ARRIVALS: Final = 10_000  # stages that wait to be entered
SETTLED_SECONDS: Final = 0.5  # between two entries of what was noted


class Histogram:
    """Durations in buckets: constant memory, exact sum and count, quantiles within an eighth.

    Args:
        seconds: The first durations.

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
        figures = {"count": self.count, "total": self.total, "longest": self.longest}
        filled = [[index, count] for index, count in enumerate(self.buckets) if count]
        return {**figures, "buckets": filled}

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


def halved(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the sums of every two neighbours; of memory, the maximum."""
    pairs = zip_longest(rows[::2], rows[1::2], fillvalue=[0.0] * len(COLUMNS))
    return [added(one, other) for one, other in pairs]


def added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the sum of two rows of figures; of memory, the maximum."""
    sums = [a + b for a, b in zip(one, other, strict=True)]
    return [*sums[:-1], max(one[-1], other[-1])]


def share_of(part: float, rest: float) -> float:
    """Return a part as a share of it and the rest; 0 where both are nothing."""
    return part / (part + rest) if part + rest > 0 else 0.0


class Sums(NamedTuple):
    """Sums over all batches."""

    batches: int = 0
    samples: int = 0
    steps: int = 0
    waited: float = 0.0
    stepped: float = 0.0

    def since(self, before: Sums) -> Sums:
        """Return what was added since."""
        return Sums(
            self.batches - before.batches,
            self.samples - before.samples,
            self.steps - before.steps,
            max(0.0, self.waited - before.waited),
            max(0.0, self.stepped - before.stepped),
        )


@dataclass(frozen=True, slots=True)
class Base:
    """What the sums of `Quick` are added to.

    Args:
        sums: The sums up to here.
        samples: Samples of each batch from here on.
        paused: Whether there is no step before the first of these batches.
    """

    sums: Sums
    samples: int
    paused: bool


# The base, and since then: batches, seconds of waiting, and those of steps; when the last batch
# arrived (0 if what follows is not a step), and seconds of the last step (0 if there was none).
# One tuple, which is replaced for every batch: another thread always reads figures that agree.
Quick: TypeAlias = tuple[Base, int, float, float, float, float]


def summed(quick: Quick) -> Sums:
    """Return the sums with these batches."""
    base, batches, waited, stepped, _, _ = quick
    sums = base.sums
    if not batches:
        return sums
    return Sums(
        sums.batches + batches,
        sums.samples + batches * base.samples,
        sums.steps + batches - base.paused,
        sums.waited + waited,
        sums.stepped + stepped,
    )


class Cursor(Protocol):
    """The place of a batch: an epoch, and a position in it."""

    @property
    def epoch(self) -> int:
        """The epoch."""

    @property
    def position(self) -> int:
        """The position in it."""


Place: TypeAlias = tuple[int, int] | Cursor


class Noted(NamedTuple):
    """A batch that is noted on its own; sums are those after it."""

    asked: float
    waited: float
    step: float | None
    samples: int
    cursor: tuple[int, int] | None
    probed: bool
    sums: Sums


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The figures of a loader at a moment: of one rank, or merged over ranks.

    Args:
        rank: The rank; the lowest one if several are merged.
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
        """Batches that were requested."""
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
    """Return several snapshots, of the ranks of a run or of its sessions, as one.

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
        for name, (count, seconds) in each.workers.items():
            worker = workers.setdefault(f"rank {each.rank}, {name}", [0, 0.0])
            worker[:] = worker[0] + count, worker[1] + seconds
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
