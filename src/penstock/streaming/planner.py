"""What is read, and where it goes: the reads of a stream, with a destination for every row.

Planning is pure arithmetic; nothing is read here. `Planner` plans one part ahead of the readers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.order import BlockOrder, Cursor, Indices, Plan, Span, Steps, StoredOrder
from penstock.order.block_rounds import BlockRounds
from penstock.order.subset import SelectedBlocks

PART_SAMPLES = 1 << 18  # planned together: about 10 MB of temporary arrays
PART_BLOCKS = 1 << 12  # planned together at most: about 1 MB of Python objects
_NO_ROWS = np.empty(0, np.int64)

Positions: TypeAlias = Callable[[int, int], Indices]  # of samples begin:end of a window


# orders whose samples come in rounds of windows, one window for each lane. Where the windows of a
# round end at different positions (`SelectedBlocks`), ``round_stop(epoch, k)`` is the position
# after the last one of round ``k``; no position of round ``k`` or of a later round is then before
# `round_start`, and `round_of` is the first round that can have the given position or a later one
WindowedOrder: TypeAlias = BlockOrder | StoredOrder | BlockRounds | SelectedBlocks


@dataclass(frozen=True, slots=True)
class Segment:
    """The steps of one epoch that a stream delivers, starting at a position.

    All steps are complete except possibly the last two, which end at ``last`` and at ``stop``.
    """

    epoch: int
    start: int
    count: int
    last: int
    stop: int

    @classmethod
    def of(cls, steps: Steps, cursor: Cursor, count: int) -> Segment:
        """Return the segment of ``count`` steps that starts at a cursor."""
        last = cursor.position
        if count > 1:
            last = steps.stop(cursor.position + (count - 2) * steps.whole)
        return cls(cursor.epoch, cursor.position, count, last, steps.stop(last))

    def bounds(self, i: int, whole: int) -> tuple[int, int]:
        """Return the first position of step ``i`` of the segment, and the end of the step."""
        begin = self.start + i * whole
        if i < self.count - 2:
            return begin, begin + whole
        return (begin, self.last) if i < self.count - 1 else (self.last, self.stop)

    def begins(self, whole: int) -> Iterator[int]:
        """Return the first position of each step."""
        return chain(range(self.start, self.start + (self.count - 1) * whole, whole), (self.last,))

    def lengths(self, whole: int) -> Iterator[int]:
        """Return the number of positions in each step."""
        before = self.start + (self.count - 2) * whole
        ends = (self.last - before, self.stop - self.last)
        return chain(repeat(whole, self.count - 2), ends[-self.count :])

    def steps_in(self, begin: int, end: int, whole: int) -> range:
        """Return the steps that have a position in ``[begin, end)``."""
        begin, end = max(begin, self.start), min(end, self.stop)
        if begin >= end:
            return range(0)
        return range(self._step(begin, whole), self._step(end - 1, whole) + 1)

    def _step(self, position: int, whole: int) -> int:
        if position >= self.last:
            return self.count - 1
        return min((position - self.start) // whole, self.count - 2)

    def batch_rows(
        self, plan: Plan, positions: Indices, *, span: tuple[int, int], first: int
    ) -> tuple[Indices, npt.NDArray[np.bool_] | None]:
        """Return the row of each position, and a mask of the positions that are this rank's.

        Rows are counted through the rank's batches from step ``first`` on, as if each batch were
        complete. The mask is None if all positions are this rank's. All positions are in ``span``.
        """
        steps, whole = plan.steps, plan.steps.whole
        inside = self.start <= span[0] and span[1] <= self.stop
        if steps.world == steps.lanes == 1:  # positions and rows run in parallel
            rows: Indices = positions - (self.start + first * whole)
            return rows, None if inside else (positions >= self.start) & (positions < self.stop)
        i: Indices = (positions - self.start) // whole
        if inside and span[1] <= self.last - whole:  # only complete steps
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
    """Read samples ``start : start + count``, and write those selected by ``keep``.

    ``keep`` is a mask of the samples, or their numbers, ascending and possibly repeated.
    """

    epoch: int
    start: int
    count: int
    first: int  # index into the part's rows: the destination of the first selected sample
    keep: npt.NDArray[np.bool_] | Indices | None  # None selects all samples
    selected: int  # number of selected samples
    turn: int | None = None  # the pass of the samples, if it is not the epoch

    @property
    def repeats(self) -> bool:
        """Whether a sample may be selected several times."""
        return self.keep is not None and self.keep.dtype != np.bool_

    @property
    def index(self) -> Indices:
        """The selected samples, counted from ``start``."""
        if self.keep is None:
            return np.arange(self.count)
        return self.keep.astype(np.int64) if self.repeats else np.flatnonzero(self.keep)


@dataclass(frozen=True, slots=True)
class Round:
    """The batches ``first : stop`` that are written together; ``ready`` are complete after it."""

    first: int
    stop: int
    ready: int


@dataclass(frozen=True, slots=True)
class Part:
    """Reads of a round that are planned together: about `PART_SAMPLES` samples, or one block.

    The i-th selected sample of its reads becomes row ``rows[i]`` of the round's batches, counted
    as if each batch were complete. Planning in parts keeps this array small: a whole round of 50
    million scalars would need 400 MB.
    """

    round: Round
    reads: tuple[BlockRead, ...]
    rows: Indices
    begins: bool  # the first part of its round
    ends: bool  # the last part of its round


class _Run(NamedTuple):
    """Consecutive blocks of a window: samples ``begin : end`` of it."""

    begin: int
    end: int
    spans: list[Span]
    positions: Positions


class Planner:
    """The parts of a stream, one at a time, with the next one planned in advance.

    All methods may be called from several threads.

    Args:
        parts: Yields the parts; see `plan_parts`.
    """

    def __init__(self, parts: Iterator[Part]) -> None:
        self.error: BaseException | None = None  # the error that ended the planning
        self._parts = parts
        self._lock = threading.Lock()  # held by the one thread that plans
        self._next: Part | None = None

    def peek(self) -> Part | None:
        """Return the next part; None if planning failed, in this thread or in another one."""
        with self._lock:
            return self._plan()

    def pop(self) -> None:
        """Remove the part that `peek` returned."""
        with self._lock:
            self._next = None

    def plan_ahead(self) -> None:
        """Plan the next part now, unless that is done or another thread does it."""
        if self._next is None and self._lock.acquire(blocking=False):
            try:
                self._plan()
            finally:
                self._lock.release()

    def _plan(self) -> Part | None:
        if self._next is None and self.error is None:
            try:
                self._next = next(self._parts)
            except BaseException as error:  # noqa: BLE001 - raised after the batches planned so far
                self.error = error
        return self._next


def plan_parts(plan: Plan, order: WindowedOrder, segments: Iterator[Segment]) -> Iterator[Part]:
    """Yield the parts of a rank's stream, segment after segment; each is planned on request."""
    done = 0
    for segment in segments:
        yield from _plan_rounds(plan, order, segment, done)
        done += segment.count


def _plan_rounds(plan: Plan, windows: WindowedOrder, segment: Segment, done: int) -> Iterator[Part]:
    epoch, whole = segment.epoch, plan.steps.whole
    ends = plan.skips.original(epoch, np.array([segment.start, segment.stop - 1]))
    first, last = ends.tolist()
    round_stop = getattr(windows, "round_stop", None)
    for k in range(windows.round_of(epoch, first), windows.rounds):
        start, following = windows.round_start(epoch, k), windows.round_start(epoch, k + 1)
        if start > last:
            break
        stop = following if round_stop is None else round_stop(epoch, k)
        begin, done_at, end = plan.skips.kept(epoch, np.array([start, following, stop])).tolist()
        touched = segment.steps_in(begin, end, whole)
        if not touched:  # the whole round is skipped, or was delivered
            continue
        complete = touched.stop
        while complete > touched.start and segment.bounds(complete - 1, whole)[1] > done_at:
            complete -= 1
        # The first position of a round can belong to any lane, not only to lane 0.
        columns = [(lane - start) % plan.steps.lanes for lane in _lanes(plan, segment, touched)]
        read = [
            (
                windows.window_reads(epoch, k, each),
                partial(windows.window_positions, epoch, k, each),
            )
            for each in columns
        ]
        this = Round(done + touched.start, done + touched.stop, done + complete)
        yield from _parts(plan, segment, this, (begin, end), touched.start, read)


def _parts(
    plan: Plan, segment: Segment, this: Round, span: tuple[int, int], first: int,
    windows: Sequence[tuple[Iterable[Span], Positions]],
) -> Iterator[Part]:  # fmt: skip
    """Yield the parts of a round, whose positions are in ``span``."""
    begins, following = True, _runs(windows)
    runs = next(following, [])
    while begins or runs:
        after = next(following, [])
        reads: list[BlockRead] = []
        rows: list[Indices] = []
        wanted = 0
        for run in runs:
            found, mine = _batch_rows(plan, segment, run, span, first)
            reads += _reads(segment.epoch, run.spans, mine, wanted)
            rows.append(found if mine is None else found[mine])
            wanted += rows[-1].size
        joined = rows[0] if len(rows) == 1 else np.concatenate([_NO_ROWS, *rows])
        yield Part(this, tuple(reads), joined, begins, ends=not after)
        begins, runs = False, after


def _runs(windows: Sequence[tuple[Iterable[Span], Positions]]) -> Iterator[list[_Run]]:
    """Yield the blocks of a round's windows in groups of about one part."""
    group: list[_Run] = []
    size = 0
    for window, positions in windows:
        spans: list[Span] = []
        begin = end = 0
        for span in window:
            spans.append(span)
            end += span.items
            if size + end - begin >= PART_SAMPLES or len(spans) >= PART_BLOCKS:
                yield [*group, _Run(begin, end, spans, positions)]
                group, size, spans, begin = [], 0, [], end
        if spans:
            group.append(_Run(begin, end, spans, positions))
            size += end - begin
    if group:
        yield group


def _batch_rows(
    plan: Plan, segment: Segment, run: _Run, span: tuple[int, int], first: int
) -> tuple[Indices, npt.NDArray[np.bool_] | None]:
    """Return `Segment.batch_rows` for a run, in pieces: a large block needs large temporaries."""
    rows: Indices = np.empty(run.end - run.begin, np.int64)
    mine: npt.NDArray[np.bool_] | None = None
    for begin in range(run.begin, run.end, PART_SAMPLES):
        end = min(begin + PART_SAMPLES, run.end)
        positions = run.positions(begin, end)
        kept = plan.skips.kept(segment.epoch, positions)
        found, selected = segment.batch_rows(plan, kept, span=span, first=first)
        if segment.epoch in plan.skips:
            delivered = ~plan.skips.left_out(segment.epoch, positions)
            selected = delivered if selected is None else selected & delivered
        part = slice(begin - run.begin, end - run.begin)
        if len(found) == len(rows):
            return found, selected
        rows[part] = found
        if selected is not None:
            mine = np.ones(len(rows), np.bool_) if mine is None else mine
            mine[part] = selected
    return rows, mine


def _reads(
    epoch: int, spans: list[Span], mine: npt.NDArray[np.bool_] | None, wanted: int
) -> Iterator[BlockRead]:
    """Yield a read for each block that has a sample of this rank."""
    end = 0
    for span in spans:
        part = slice(end, end := end + span.items)
        keep: npt.NDArray[Any] | None
        keep = None if mine is None or mine[part].all() else mine[part]
        count = span.items if keep is None else int(keep.sum())
        if span.take is not None:
            keep = span.take if keep is None else span.take[keep]
        if count:
            yield BlockRead(epoch, span.start, span.count, wanted, keep, count, span.turn)
        wanted += count


def _lanes(plan: Plan, segment: Segment, touched: range) -> list[int]:
    """Return the lanes that have a position of this rank in these steps."""
    steps, skipping = plan.steps.of(segment.epoch), segment.epoch in plan.skips
    if steps.lanes == 1:
        return [0]
    regular = steps.whole % steps.lanes == 0 and steps.lanes % steps.world == 0 and not skipping
    lanes = set(steps.lanes_of(plan.rank)) if regular else set()
    irregular = range(max(touched.start, segment.count - 2), touched.stop) if regular else touched
    for i in irregular:
        begin, _ = segment.bounds(i, steps.whole)
        positions = plan.positions(Cursor(segment.epoch, begin))
        lanes |= set((positions % steps.lanes).tolist())
        if len(lanes) == steps.lanes:
            break
    return sorted(lanes)
