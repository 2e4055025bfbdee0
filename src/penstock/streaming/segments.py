"""Where the rows of a window go: which batch, which row of it. Arithmetic, before any read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.order import Cursor, Indices, Plan, Span, Steps

PART_SAMPLES = 1 << 18  # whose places are worked out together: some 10 MB of temporary arrays
PART_BLOCKS = 1 << 12  # that are planned together at most: some 1 MB of Python objects
_NO_ROWS = np.empty(0, np.int64)


class Windows(Protocol):
    """An order whose samples come in rounds of windows, one window for each lane."""

    @property
    def window_samples(self) -> int:
        """Samples a lane holds at most in one window."""
        ...

    def round_of(self, epoch: int, position: int) -> int:
        """The round a position is in."""
        ...

    def round_start(self, epoch: int, k: int) -> int:
        """First position of round ``k``; of round ``rounds``: the end of the epoch."""
        ...

    def window_reads(self, epoch: int, k: int, column: int) -> list[Span]:
        """What one lane reads for its window."""
        ...

    def window_positions(self, epoch: int, k: int, column: int, begin: int, end: int) -> Indices:
        """Positions of samples ``begin : end`` of the window, in the order of `window_reads`."""
        ...


@dataclass(frozen=True, slots=True)
class Segment:
    """The steps of one epoch that are delivered, from a position on.

    All steps are whole, but for the last two: ``[.., last)`` and ``[last, stop)``.
    """

    epoch: int
    start: int
    count: int
    last: int
    stop: int

    @classmethod
    def of(cls, steps: Steps, cursor: Cursor, count: int) -> Segment:
        """``count`` steps of the cursor's epoch, from its position on."""
        last = cursor.position
        if count > 1:
            last = steps.stop(cursor.position + (count - 2) * steps.whole)
        return cls(cursor.epoch, cursor.position, count, last, steps.stop(last))

    def bounds(self, i: int, whole: int) -> tuple[int, int]:
        """First and last position of step ``i`` of the segment."""
        begin = self.start + i * whole
        if i < self.count - 2:
            return begin, begin + whole
        return (begin, self.last) if i < self.count - 1 else (self.last, self.stop)

    def begins(self, whole: int) -> Iterator[int]:
        """Where each step begins."""
        return chain(range(self.start, self.start + (self.count - 1) * whole, whole), (self.last,))

    def lengths(self, whole: int) -> Iterator[int]:
        """Positions of each step."""
        before = self.start + (self.count - 2) * whole
        ends = (self.last - before, self.stop - self.last)
        return chain(repeat(whole, self.count - 2), ends[-self.count :])

    def steps_in(self, begin: int, end: int, whole: int) -> range:
        """Steps that have a position in ``[begin, end)``."""
        begin, end = max(begin, self.start), min(end, self.stop)
        if begin >= end:
            return range(0)
        return range(self._step(begin, whole), self._step(end - 1, whole) + 1)

    def _step(self, position: int, whole: int) -> int:
        if position >= self.last:
            return self.count - 1
        return min((position - self.start) // whole, self.count - 2)

    def place(
        self, plan: Plan, positions: Indices, *, span: tuple[int, int], first: int
    ) -> tuple[Indices, npt.NDArray[np.bool_] | None]:
        """Row of each position in this rank's batches from step ``first`` on, each counted whole.

        And which of the positions are its own; None for a mask: all are. ``span``: from where to
        where they are.
        """
        steps, whole = plan.steps, plan.steps.whole
        inside = self.start <= span[0] and span[1] <= self.stop
        if steps.world == steps.lanes == 1:  # every step begins where the one before it ends
            rows: Indices = positions - (self.start + first * whole)
            return rows, None if inside else (positions >= self.start) & (positions < self.stop)
        i: Indices = (positions - self.start) // whole
        if inside and span[1] <= self.last - whole:  # whole steps only
            begin = self.start + i * whole
            m: int | Indices = whole
        else:
            i = np.where(positions >= self.last, self.count - 1, np.minimum(i, self.count - 2))
            np.maximum(i, 0, out=i)
            final, before = i == self.count - 1, i == self.count - 2
            begin = np.where(final, self.last, self.start + i * whole)
            m = np.where(final, self.stop - self.last, np.where(before, self.last - begin, whole))
        t = steps.indices_in_step(begin, positions, begin + m)
        low, high = plan.rank * m // steps.world, (plan.rank + 1) * m // steps.world
        rows = (i - first) * steps.batch + (t - low)
        if steps.world == 1 and inside:
            return rows, None
        mine = (t >= low) & (t < high)
        if not inside:
            mine &= (positions >= self.start) & (positions < self.stop)
        return rows, mine


@dataclass(frozen=True, slots=True)
class BlockRead:
    """Read samples ``start : start + count``; those wanted are the next from ``first`` on.

    ``keep``: which are wanted; None for all. Where they go is said by the part it belongs to.
    """

    epoch: int
    start: int
    count: int
    first: int
    keep: npt.NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class Round:
    """Batches ``first : stop`` that a rank fills together; ``ready`` are complete after it."""

    first: int
    stop: int
    ready: int


@dataclass(frozen=True, slots=True)
class Part:
    """Reads of a round that are planned together: about `PART_SAMPLES` samples, or one block.

    The i-th sample wanted of its reads becomes row ``rows[i]`` of the round's batches, counted
    through them as if each were whole. Planning by parts keeps this array small where samples
    are: a round of 50 million scalars would need 400 MB of it.
    """

    round: Round
    reads: tuple[BlockRead, ...]
    rows: Indices
    begins: bool  # it is the first part of its round
    ends: bool  # it is the last one


class _Run(NamedTuple):
    """Consecutive blocks of one lane's window: samples ``begin : end`` of the window."""

    column: int
    begin: int
    end: int
    spans: list[Span]


def plan_parts(plan: Plan, windows: Windows, segments: Iterator[Segment]) -> Iterator[Part]:
    """The reads of a rank's stream, segment after segment, each part planned when asked for."""
    done = 0
    for segment in segments:
        first = windows.round_of(segment.epoch, segment.start)
        last = windows.round_of(segment.epoch, segment.stop - 1)
        for k in range(first, last + 1):
            yield from _plan_round(plan, windows, segment, k, done)
        done += segment.count


def _plan_round(
    plan: Plan, windows: Windows, segment: Segment, k: int, done: int
) -> Iterator[Part]:
    span = windows.round_start(segment.epoch, k), windows.round_start(segment.epoch, k + 1)
    touched = segment.steps_in(*span, plan.steps.whole)
    complete = (
        touched.stop
        if span[1] >= segment.bounds(touched.stop - 1, plan.steps.whole)[1]
        else touched.stop - 1
    )
    this = Round(done + touched.start, done + touched.stop, done + complete)
    # a round need not begin with lane 0
    columns = [(lane - span[0]) % plan.steps.lanes for lane in _lanes(plan, segment, touched)]
    begins, following = True, _runs(windows, segment.epoch, k, columns)
    runs = next(following, [])
    while begins or runs:
        after = next(following, [])
        reads: list[BlockRead] = []
        rows: list[Indices] = []
        wanted = 0
        for run in runs:
            placed, mine = _place(plan, windows, segment, k, run, span, touched.start)
            reads += _reads(segment.epoch, run.spans, mine, wanted)
            rows.append(placed if mine is None else placed[mine])
            wanted += rows[-1].size
        joined = rows[0] if len(rows) == 1 else np.concatenate([_NO_ROWS, *rows])
        yield Part(this, tuple(reads), joined, begins, ends=not after)
        begins, runs = False, after


def _runs(windows: Windows, epoch: int, k: int, columns: list[int]) -> Iterator[list[_Run]]:
    """The blocks of a round's windows, in groups of about `PART_SAMPLES` or `PART_BLOCKS`."""
    group: list[_Run] = []
    size = 0
    for column in columns:
        spans: list[Span] = []
        begin = end = 0
        for span in windows.window_reads(epoch, k, column):
            spans.append(span)
            end += span.count
            if size + end - begin >= PART_SAMPLES or len(spans) >= PART_BLOCKS:
                yield [*group, _Run(column, begin, end, spans)]
                group, size, spans, begin = [], 0, [], end
        if spans:
            group.append(_Run(column, begin, end, spans))
            size += end - begin
    if group:
        yield group


def _place(
    plan: Plan, windows: Windows, segment: Segment, k: int, run: _Run,
    span: tuple[int, int], first: int,
) -> tuple[Indices, npt.NDArray[np.bool_] | None]:  # fmt: skip
    """What `Segment.place` gives for a run, without large temporaries for a large block."""
    rows: Indices = np.empty(run.end - run.begin, np.int64)
    mine: npt.NDArray[np.bool_] | None = None
    for begin in range(run.begin, run.end, PART_SAMPLES):
        end = min(begin + PART_SAMPLES, run.end)
        positions = windows.window_positions(segment.epoch, k, run.column, begin, end)
        placed, kept = segment.place(plan, positions, span=span, first=first)
        part = slice(begin - run.begin, end - run.begin)
        if len(placed) == len(rows):
            return placed, kept
        rows[part] = placed
        if kept is not None:
            mine = np.ones(len(rows), np.bool_) if mine is None else mine
            mine[part] = kept
    return rows, mine


def _reads(
    epoch: int, spans: list[Span], mine: npt.NDArray[np.bool_] | None, wanted: int
) -> Iterator[BlockRead]:
    """A window's blocks, of whose samples some or all are wanted; the others are not read."""
    end = 0
    for span in spans:
        part = slice(end, end := end + span.count)
        keep = None if mine is None or mine[part].all() else mine[part]
        count = span.count if keep is None else int(keep.sum())
        if count:
            yield BlockRead(epoch, span.start, span.count, wanted, keep)
        wanted += count


def _lanes(plan: Plan, segment: Segment, touched: range) -> list[int]:
    """Lanes that hold a position of this rank in these steps."""
    steps = plan.steps
    if steps.lanes == 1:
        return [0]
    regular = steps.whole % steps.lanes == 0 and steps.lanes % steps.world == 0
    lanes = set(steps.lanes_of(plan.rank)) if regular else set()
    irregular = range(max(touched.start, segment.count - 2), touched.stop) if regular else touched
    for i in irregular:
        begin, _ = segment.bounds(i, steps.whole)
        lanes |= set((steps.rank_positions(begin, plan.rank) % steps.lanes).tolist())
        if len(lanes) == steps.lanes:
            break
    return sorted(lanes)
