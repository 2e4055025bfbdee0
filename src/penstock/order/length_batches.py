"""Batches of samples of similar length under a budget of tokens, and the steps they make."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import array_of, whole_number
from penstock.errors import PlanError
from penstock.fingerprints import digest_of
from penstock.order.orders import EqualWindows, Order, Recent, check_positions
from penstock.order.permutation import Indices, Permutation, derive_key
from penstock.order.plan import Skips
from penstock.order.steps import Steps


def budget_cuts(lengths: Indices, budget: int) -> Indices:
    """Return the ends of batches of descending lengths, each within ``budget`` when padded."""
    counts = np.maximum(1, budget // np.maximum(lengths, 1)).tolist()
    ends, i = [], 0
    while i < len(counts):
        i = min(i + counts[i], len(counts))
        ends.append(i)
    return np.array(ends, np.int64)


def split_to(ends: Indices, count: int) -> Indices:
    """Return the ends after halving the batches with the most samples until there are ``count``.

    >>> split_to(np.array([8, 10]), 5).tolist()
    [2, 4, 6, 8, 10]
    """
    if count <= len(ends):
        return ends
    starts = [0, *ends[:-1].tolist()]
    heap = [(a - b, a, b) for a, b in zip(starts, ends.tolist(), strict=True)]
    heapify(heap)
    while len(heap) < count and heap[0][0] < -1:
        _, a, b = heappop(heap)
        middle = (a + b + 1) // 2
        heappush(heap, (a - middle, a, middle))
        heappush(heap, (middle - b, middle, b))
    return np.sort(np.array([b for _, _, b in heap], np.int64))


class LengthBatches:
    """An order whose consecutive positions are batches of samples of similar length.

    Within windows of another order, samples are sorted by length, longest first, and cut into
    batches: as many samples as fit the budget of tokens when padded, or at most ``count`` samples.
    A window has a multiple of ``group`` batches, because the largest ones are halved (except for
    the last window of an epoch). Groups of batches of similar length are shuffled by key, and so
    are the batches of a group.

    Positions count the samples as they are delivered, so a cursor is ``(epoch, position)`` as for
    every order, and resuming plans one window. If the number of ranks divides ``group``, all ranks
    have the same number of batches in every window; otherwise, batches of the last step of an epoch
    are halved.

    Args:
        order: The order whose windows are sorted.
        lengths: Tokens of each sample.
        window: Samples that are sorted together.
        budget: Tokens of a batch, including padding. Pass this or ``count``.
        count: Samples of a batch.
        group: Batches of similar length that stay together; a multiple of the number of ranks.

    >>> from penstock.order.orders import ShuffledOrder
    >>> lengths = np.array([5, 1, 4, 1, 5, 2])
    >>> order = LengthBatches(ShuffledOrder(6, seed=42), lengths, window=6, budget=10)
    >>> [lengths[order.at(0, np.arange(a, b))].tolist() for a, b in order.batches(0, 0, most=9)]
    [[4, 2], [5, 5], [1, 1]]
    """

    kind = "length"
    lanes = 1

    def __init__(
        self,
        order: Order,
        lengths: npt.ArrayLike,
        window: int,
        *,
        budget: int | None = None,
        count: int | None = None,
        group: int = 1,
    ) -> None:
        self.order, self.seed, self.size = order, order.seed, order.size
        self.lengths, self.window = checked_lengths(lengths, order.size), window
        if (budget is None) == (count is None):
            raise PlanError("pass either a budget of tokens or a count of samples")
        self.budget = None if budget is None else whole_number("max_tokens", budget, minimum=1)
        self.count = None if count is None else whole_number("batch_size", count, minimum=1)
        self._longest = longest = int(self.lengths.max())
        if self.budget is not None and longest > self.budget:
            raise PlanError(
                f"a sample of {longest:,} tokens does not fit max_tokens={self.budget:,}: "
                f"use max_tokens={longest} or more, or cut the sample"
            )
        self.group = whole_number("group", group, minimum=1, unit="batch")
        self.windows = EqualWindows(self.size, window, unit=self.group)
        self._plans, self._counts = Recent(self._plan), Recent(self._count_all)
        self._digest: str | None = None

    def identity(self) -> dict[str, Any]:
        """Return the identity of the inner order, how it is cut, and the digest of the lengths."""
        if self._digest is None:
            self._digest = digest_of(self.lengths.astype(np.int64))
        return self.order.identity() | {
            "order": f"{self.order.kind} by {self.kind}",
            "lengths": self._digest,
            "sorted": self.window,
            "group": self.group,
            "cut": ["tokens", self.budget] if self.count is None else ["samples", self.count],
        }

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the samples at these positions of this epoch."""
        positions = check_positions(positions, self.size)
        found = np.empty_like(positions)
        for w, here in self.windows.split(positions):
            found[here] = self._plans(epoch, w)[0][positions[here] - self.windows.start(w)]
        return found

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the positions of these samples: the inverse of `at`."""
        samples = check_positions(samples, self.size)
        found = np.empty_like(samples)
        for w, here in self.windows.split(self.order.position_of(epoch, samples)):
            delivered = self._plans(epoch, w)[0]
            by_sample = np.argsort(delivered)
            index = by_sample[np.searchsorted(delivered, samples[here], sorter=by_sample)]
            found[here] = self.windows.start(w) + index
        return found

    def places(self, epoch: int) -> int:
        """Return the number of positions of an epoch; only the number of batches varies."""
        return self.size

    # -- batches

    def batches(self, epoch: int, position: int, most: int) -> list[tuple[int, int]]:
        """Return the next batches as ranges of positions; fewer than ``most`` at an epoch's end."""
        found: list[tuple[int, int]] = []
        while position < self.size and len(found) < most:
            w = self.windows.of(position)
            base, ends = self.windows.start(w), self._plans(epoch, w)[1]
            i = int(np.searchsorted(ends, position - base, side="right"))
            borders = [position, *(base + ends[i : i + most - len(found)]).tolist()]
            found += itertools.pairwise(borders)
            position = borders[-1]
        return found

    def first_batches(self, epoch: int) -> Indices:
        """Return the number of batches before each window of an epoch, and in all.

        It counts every window: about a second for ten million samples, once per epoch.
        """
        return self._counts(epoch)

    def total(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return int(self.first_batches(epoch)[-1])

    def batch_at(self, epoch: int, position: int) -> int:
        """Return the number of batches that end at or before a position."""
        if position >= self.size:
            return self.total(epoch)
        w = self.windows.of(position)
        ends = self._plans(epoch, w)[1]
        inside = np.searchsorted(ends, position - self.windows.start(w), side="right")
        return int(self.first_batches(epoch)[w] + inside)

    def batch_start(self, epoch: int, batch: int) -> int:
        """Return the position at which batch number ``batch`` of an epoch begins."""
        first = self.first_batches(epoch)
        w = int(np.searchsorted(first, batch, side="right")) - 1
        if w == self.windows.count:
            return self.size
        inside = batch - int(first[w])
        ends = self._plans(epoch, w)[1]
        return self.windows.start(w) + (int(ends[inside - 1]) if inside else 0)

    @property
    def make_steps(self) -> Callable[..., Steps]:
        """The class of the steps that this order is cut into."""
        return partial(LengthSteps, batches=self)

    # -- one window

    def _plan(self, epoch: int, w: int) -> tuple[Indices, Indices]:
        """Return the samples of a window as they are delivered, and where each batch ends."""
        samples, lengths = self._sorted(epoch, self.windows.positions(w))
        ends = self._cuts(lengths)
        order = self._shuffled(len(ends), epoch, w)
        starts = np.concatenate([[0], ends[:-1]])
        sizes = (ends - starts)[order]
        delivered = np.cumsum(sizes)
        take = np.repeat(starts[order] - (delivered - sizes), sizes) + np.arange(len(samples))
        return samples[take], delivered

    def _sorted(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        """Return the samples at these positions, longest first, and their lengths."""
        samples = self.order.at(epoch, positions)
        lengths = self.lengths[samples].astype(np.int64)
        missing = self._longest - lengths  # to the longest: sorts longest first
        if self._longest < 1 << 16:
            missing = missing.astype(np.uint16)  # numpy sorts it by radix, ten times as fast
        longest_first = np.argsort(missing, kind="stable")
        return samples[longest_first], lengths[longest_first]

    def _cuts(self, lengths: Indices) -> Indices:
        if self.count is not None:
            batches = self._equal_batches(len(lengths))
            return np.arange(1, batches + 1) * len(lengths) // batches
        ends = budget_cuts(lengths, self.budget or 0)
        return split_to(ends, -(-len(ends) // self.group) * self.group)

    def _equal_batches(self, samples: int) -> int:
        return min(self.group * -(-samples // ((self.count or 0) * self.group)), samples)

    def _shuffled(self, batches: int, epoch: int, w: int) -> Indices:
        """Return groups in keyed order, and batches in each; an incomplete group stays last."""
        groups = batches // self.group
        if not groups:
            return np.arange(batches)
        outer = Permutation(groups, derive_key(self.seed, "batches", epoch, w))(np.arange(groups))
        outer = np.repeat(outer, self.group)
        keys = np.asarray(derive_key(derive_key(self.seed, "group", epoch), w, outer))
        inner = Permutation(self.group, keys)(np.tile(np.arange(self.group), groups))
        return np.concatenate([outer * self.group + inner, np.arange(groups * self.group, batches)])

    def _count_all(self, epoch: int) -> Indices:
        counts = [self._count(epoch, w) for w in range(self.windows.count)]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def _count(self, epoch: int, w: int) -> int:
        """Return the batches of a window by the histogram of lengths: nothing is sorted."""
        positions = self.windows.positions(w)
        if self.count is not None:
            return self._equal_batches(len(positions))
        held = np.bincount(self.lengths[self.order.at(epoch, positions)].astype(np.int64))
        batches = left = 0  # left: room in the last batch, for samples no longer than its first
        for length in np.flatnonzero(held)[::-1].tolist():
            rest, left = int(held[length]) - left, max(0, left - int(held[length]))
            if rest > 0:
                fit = max(1, (self.budget or 0) // max(length, 1))
                more = -(-rest // fit)
                batches, left = batches + more, more * fit - rest
        return min(-(-batches // self.group) * self.group, len(positions))


class LaneBatches(LengthBatches):
    """Batches of similar length, each from one lane of a block order: ranks read their own blocks.

    Each lane's part of a window is cut separately; its batches are halved until it has as many as
    the lane with the most. Batches come from each lane in turn. If the number of ranks divides the
    lanes, rank r gets the lanes that are r modulo that number, and all ranks have the same number
    of steps in every window. At the end of an epoch, samples that do not fill a row of lanes can
    be delivered by any rank.

    Args:
        order: An order with lanes, such as `BlockOrder`.
        lengths: Tokens of each sample.
        window: Samples of all lanes that are sorted together.
        budget: Tokens of a batch, including padding.
    """

    kind = "length and lane"

    def __init__(self, order: Order, lengths: npt.ArrayLike, window: int, *, budget: int) -> None:
        super().__init__(order, lengths, window, budget=budget, group=order.lanes)

    def _plan(self, epoch: int, w: int) -> tuple[Indices, Indices]:
        positions = self.windows.positions(w)
        lanes = [self._sorted(epoch, positions[each :: self.group]) for each in range(self.group)]
        cuts = [budget_cuts(lengths, self.budget or 0) for _, lengths in lanes]
        dealt: list[tuple[int, int, Indices]] = []
        for lane, ((samples, _), ends) in enumerate(zip(lanes, cuts, strict=True)):
            ends = split_to(ends, max(map(len, cuts)))
            key = derive_key(self.seed, "batches", epoch, w, lane)
            shuffled = Permutation(len(ends), key)(np.arange(len(ends))).tolist()
            batches = np.split(samples, ends[:-1])
            dealt += [(row, lane, batches[i]) for row, i in enumerate(shuffled)]
        dealt.sort(key=lambda each: each[:2])
        sizes = [len(samples) for _, _, samples in dealt]
        return np.concatenate([samples for _, _, samples in dealt]), np.cumsum(sizes)

    def _count(self, epoch: int, w: int) -> int:
        return len(self._plans(epoch, w)[1])


def checked_lengths(lengths: npt.ArrayLike, samples: int) -> npt.NDArray[Any]:
    """Return lengths as an array of one whole number per sample, not negative."""
    found = array_of("lengths", lengths)
    if found.shape != (samples,) or found.dtype.kind not in "iuf":
        raise PlanError(
            f"lengths must be {samples:,} numbers, one per sample, got shape {found.shape}"
        )
    if found.dtype.kind == "f" and not np.array_equal(found, np.rint(found)):
        raise PlanError("lengths must be whole numbers")
    if found.size and found.min() < 0:
        raise PlanError(f"lengths must not be negative, got {found.min()}")
    return found


class KeptBatches:
    """The batches of an order with skipped positions, counted in kept positions.

    The ends of batches do not change: batches that are skipped as a whole are left out, and those
    that are skipped in part are shorter. So batches before a skip stay as they are.

    Args:
        order: The order.
        skips: The skipped positions.
    """

    def __init__(self, order: LengthBatches, skips: Skips) -> None:
        self._order, self._skips, self._gone = order, skips, Recent(self._skipped_batches)

    def batches(self, epoch: int, position: int, most: int) -> list[tuple[int, int]]:
        """Return the next batches as ranges of kept positions, as `LengthBatches.batches` does."""
        found: list[tuple[int, int]] = []
        at = self._original(epoch, position)
        while at < self._order.size and len(found) < most:
            batches = self._order.batches(epoch, at, most - len(found))
            borders = self._skips.kept(epoch, np.array([batches[0][0], *(b for _, b in batches)]))
            found += [(a, b) for a, b in itertools.pairwise(borders.tolist()) if a < b]
            at = self._original(epoch, int(borders[-1]))
        return found

    def total(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return self._gone(epoch).size(epoch, self._order.total(epoch))

    def batch_at(self, epoch: int, position: int) -> int:
        """Return the number of batches that end at or before a kept position."""
        batch = self._order.batch_at(epoch, self._original(epoch, position))
        return self._gone(epoch).size(epoch, batch)

    def batch_start(self, epoch: int, batch: int) -> int:
        """Return the kept position at which batch number ``batch`` of an epoch begins."""
        number = int(self._gone(epoch).original(epoch, np.array([batch]))[0])
        number = min(number, self._order.total(epoch))
        return self._skips.size(epoch, self._order.batch_start(epoch, number))

    def _original(self, epoch: int, position: int) -> int:
        return min(int(self._skips.original(epoch, np.array([position]))[0]), self._order.size)

    def _skipped_batches(self, epoch: int) -> Skips:
        """Return the numbers of the batches that are skipped as a whole."""
        order, found = self._order, []
        for e, start, stop in self._skips.ranges:
            if e == epoch:
                start, stop = min(start, order.size), min(stop, order.size)
                first = order.batch_at(epoch, start)
                first += order.batch_start(epoch, first) < start  # that batch is kept in part
                found.append((epoch, first, order.batch_at(epoch, stop)))
        return Skips(found)


@dataclass(frozen=True, slots=True)
class LengthSteps(Steps):
    """Steps of `LengthBatches`: the next batch for every rank, whatever its number of samples.

    Args:
        batches: The order whose batches the steps are made of; ``batch`` is not used.
        kept: The same without skipped positions; None if nothing is skipped.
        epoch: The epoch of these steps, which `of` sets; None for epoch 0 without skipped
            positions.

    >>> from penstock.order.orders import ShuffledOrder
    >>> order = LengthBatches(ShuffledOrder(9, seed=1), np.arange(9), window=9, budget=16)
    >>> steps = LengthSteps(9, 1, world=2, drop_last=False, batches=order)
    >>> steps.count, [steps.span(step) for step in range(steps.count)]
    (2, [(0, 3), (3, 9)])
    """

    batches: LengthBatches | None = None
    kept: KeptBatches | None = None
    epoch: int | None = None

    def _check_sizes(self) -> None:
        if self.size < self.world:
            raise PlanError(
                f"{self.size} samples for {self.world} ranks: some rank would get none; "
                "use fewer ranks"
            )

    def skipping(self, skips: Skips, order: Order) -> Steps:
        """Return the steps of the positions that are kept."""
        assert isinstance(order, LengthBatches)
        kept = KeptBatches(order, skips) if skips else None
        return replace(self, sizes=skips.sizes(order), kept=kept)

    def of(self, epoch: int) -> Steps:
        """Return the steps of an epoch."""
        if epoch == self.epoch:
            return self
        steps = copy(self)
        object.__setattr__(steps, "epoch", epoch)
        object.__setattr__(steps, "size", self.size if self.sizes is None else self.sizes(epoch))
        return steps

    @property
    def _cut(self) -> tuple[LengthBatches | KeptBatches, int]:
        """The batches, and the epoch."""
        assert self.batches is not None
        if self.epoch is None:
            return self.batches, 0
        return self.kept or self.batches, self.epoch

    @property
    def is_constant(self) -> bool:
        """False: the number of batches differs between epochs."""
        return False

    @property
    def whole(self) -> int:
        """Batches in a whole step: one for every rank."""
        return self.world

    def batches_at(self, p: int) -> list[tuple[int, int]]:
        """Return one batch per rank, in positions; none where the epoch is over.

        The last batches of an epoch, if fewer than the ranks, are halved until there are enough;
        fewer samples than ranks are dropped.
        """
        cut, epoch = self._cut
        found = cut.batches(epoch, p, self.world)
        if len(found) == self.world or not found:
            return found
        if self.drop_last or self.size - p < self.world:
            return []
        ends = split_to(np.array([b for _, b in found]) - p, self.world) + p
        return list(itertools.pairwise([p, *ends.tolist()]))

    def stop(self, p: int) -> int:
        """Return the end of the step that begins at ``p``; ``p`` itself when the epoch is over."""
        if self.limit is not None and self.step_of(p) >= self.limit:
            return p
        step = self.batches_at(p)
        return step[-1][1] if step else p

    def steps_from(self, p: int) -> int:
        """Return the number of steps left in the epoch at ``p``."""
        cut, epoch = self._cut
        here = cut.batch_at(epoch, p)
        n, rest = divmod(cut.total(epoch) - here, self.world)
        if rest and not self.drop_last:
            begin = max(p, cut.batch_start(epoch, here + n * self.world))
            n += self.size - begin >= self.world
        return n if self.limit is None else max(0, min(n, self.limit - self.step_of(p)))

    def span(self, step: int, origin: int = 0) -> tuple[int, int]:
        """Return the begin and end of a step, of the steps counted from ``origin``."""
        first, (cut, epoch) = self.step_of(origin), self._cut
        count = first + self.steps_from(origin)
        if not 0 <= step < count:
            raise IndexError(f"step must be in [0, {count}), got {step!r}")
        batch = cut.batch_at(epoch, origin) + (step - first) * self.world
        begin = origin if step == first else cut.batch_start(epoch, max(0, batch))
        if step < first:
            return begin, cut.batch_start(epoch, batch + self.world)
        return begin, self.stop(begin)

    def locate(self, p: int, origin: int = 0) -> tuple[int, int, int] | None:
        """Return the step, rank and row of position ``p``; None if it is dropped."""
        first, (cut, epoch) = self.step_of(origin), self._cut
        further = cut.batch_at(epoch, p) - cut.batch_at(epoch, origin)
        step = min(first + further // self.world, first + self.steps_from(origin) - 1)
        if step < 0:
            return None
        begin, stop = self.span(step, origin)
        if not begin <= p < stop:
            return None
        if step < first:  # counted backwards from the origin: the first one may be short
            batches = cut.batches(epoch, begin, self.world)
        else:
            batches = self.batches_at(begin)
        rank = next(rank for rank, (a, b) in enumerate(batches) if a <= p < b)
        return step, rank, p - batches[rank][0]

    def step_of(self, p: int, origin: int = 0) -> int:
        """Return the number of the step at ``p``, of the steps counted from ``origin``."""
        cut, epoch = self._cut
        first = cut.batch_at(epoch, origin) if origin else 0
        return -(-first // self.world) - (first - cut.batch_at(epoch, p)) // self.world

    def rank_positions(self, p: int, rank: int, stop: int | None = None) -> Indices:
        """Return the positions of a rank's batch in the step at ``p``, in delivery order."""
        return np.arange(*self.batches_at(p)[rank])
