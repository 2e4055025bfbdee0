"""Mixtures of sources that are read in blocks: a window per member and lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.order.block_rounds import BlockLines, BlockRounds
from penstock.order.mixture import MixtureOrder
from penstock.order.orders import Recent, at_epochs
from penstock.order.permutation import STRIDE, Indices, Permutation, derive_key


class _Pools(NamedTuple):
    """For every member, the range of its rows that are shuffled together.

    ``round`` is the first row of the lane in the round in which they were first read.
    """

    begin: Indices
    end: Indices
    round: Indices


class MixedBlocks(BlockRounds):
    """A mixture whose members are read in blocks, a round of windows at a time.

    In every lane, a round has ``block * window`` rows. A member contributes one range of its line
    of permuted blocks to them, so each block is read once, or twice if a round ends inside it.
    Within a round, the samples of a member and pass are shuffled by key: a *pool*.

    A stage that begins inside a round does not change the pools of that round, so that nothing
    before the stage changes: the rest of a pool comes first, then pools of the new shares.

    Args:
        sizes: Samples of each member; samples of the mixture are numbered through all members.
        stages: ``(first place, counts)``, as in `MixtureOrder`.
        seed: Seed of all shuffles.
        block: Samples per block.
        window: Blocks that a lane holds, over all members.
        lanes: Independent readers; a multiple of the number of ranks.
        until: Places per epoch, as in `MixtureOrder`, rounded up to a multiple of ``lanes``.

    >>> order = MixedBlocks([20, 10], [(0, [2, 1])], seed=42, block=4, window=3)
    >>> order.size, sorted(order.at(0, np.arange(30)).tolist()) == list(range(30))
    (30, True)
    """

    kind = "mixed blocks"

    def __init__(
        self,
        sizes: Sequence[int],
        stages: Sequence[tuple[int, Sequence[int]]],
        seed: int,
        block: int,
        window: int,
        lanes: int = 1,
        until: str | int = "first",
    ) -> None:
        counts = [np.minimum(block, n - np.arange(0, n, block)) for n in sizes]
        keys = [derive_key(seed, "member", i) for i in range(len(sizes))]
        lines = [BlockLines(each, key, lanes) for each, key in zip(counts, keys, strict=True)]
        if isinstance(until, str):  # an epoch is as long as the first stage makes it
            until = MixtureOrder(lines, stages[:1], seed, lanes, until).size
        until = -(-until // lanes) * lanes  # so that an epoch begins with lane 0
        self.mixture = MixtureOrder(lines, stages, seed, lanes, until)
        self.samples, self.seed = self.mixture.samples, seed
        super().__init__(until, block, window, lanes, self.mixture.first[:-1])
        self._lane_rows = self.size // lanes  # in an epoch
        self._together = max(1, STRIDE // self.window_samples)
        self._dealt = Recent(self._deal_rounds, keep=lanes + 1)
        self._open = Recent(self._open_pools, keep=lanes + 1)

    def identity(self) -> dict[str, Any]:
        """Return the identity of the mixture, and the geometry."""
        return self._named(self.mixture.identity())

    def identity_for(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the identity that a state must have; stages that begin after it may be added."""
        return self._named(self.mixture.identity_for(state))

    def _named(self, identity: dict[str, Any]) -> dict[str, Any]:
        return identity | {"order": self.kind, "block": self.block, "window": self.window}

    def positions_of(self, epoch: int, sample: int) -> Indices:
        """Return all positions of a sample in an epoch, ascending."""
        member, draws = self.mixture.draws_of(epoch, sample)
        moved = [self._moved(member, draw) for draw in draws.tolist()]
        return self.mixture.positions_of_draws(epoch, member, np.array(moved, np.int64))

    def _deal_rounds(self, epoch: int, part: int, lane: int) -> tuple[Indices, Indices]:
        """Return member and draw of a lane's rows in several rounds: faster than one by one."""
        first, last = part * self._together, min((part + 1) * self._together, self.rounds) - 1
        rows = np.arange(self.rows_of(first, lane)[0], self.rows_of(last, lane)[1])
        return self.mixture.draws(epoch * self.size + rows * self.lanes + lane)

    def _rows(self, epoch: int, k: int, lane: int) -> tuple[Indices, Indices]:
        (begin, end), mixture = self.rows_of(k, lane), self.mixture
        at = k % self._together * self.window_samples
        dealt = self._dealt(epoch, k // self._together, lane)
        member, draw = (each[at : at + end - begin] for each in dealt)
        passes, samples = draw // mixture.sizes[member], mixture.first[member]
        first = epoch * self._lane_rows + begin
        for i in np.unique(member).tolist():
            here = np.flatnonzero(member == i)
            rows = draw[here] // self.lanes
            for low, high, shuffle in self._shuffles(i, lane, int(rows[0]), int(rows[-1]), first):
                inside = (rows >= low) & (rows < high)
                rows[inside] = low + shuffle(rows[inside] - low)
            own = np.divmod(rows * self.lanes + lane, mixture.sizes[i])
            samples[here] += at_epochs(mixture.members[i], *own)
        return samples, passes

    def _moved(self, member: int, draw: int) -> int:
        """Return the draw of a member in whose place ``draw`` is delivered: the inverse."""
        row, lane = divmod(draw, self.lanes)
        place = int(self.mixture.place_of_draw(member, np.array([draw]))[0])
        # a draw that no longer occurs can be in a pool of an earlier stage
        at = place // self.lanes if place >= 0 else int(self._open(lane)[-1].round[member])
        for low, high, shuffle in self._shuffles(member, lane, row, row, self._round(at)[0]):
            if low <= row < high:
                row = low + int(shuffle.inverse(np.array([row - low]))[0])
                return row * self.lanes + lane
        return draw

    # -- pools

    def _round(self, row: int) -> tuple[int, int]:
        """Return the first row of the round that has a row of a lane, and of the next round."""
        epoch, row = divmod(row, self._lane_rows)
        begin = row // self.window_samples * self.window_samples
        end = min(begin + self.window_samples, self._lane_rows)
        return epoch * self._lane_rows + begin, epoch * self._lane_rows + end

    def _shuffles(
        self, member: int, lane: int, first: int, last: int, round_: int
    ) -> Iterator[tuple[int, int, Permutation]]:
        """Yield the pools of rows ``first`` to ``last`` of a member, which are in one round."""
        size, row = int(self.mixture.sizes[member]), first
        while row <= last:
            begin, end, key = self._pool(member, lane, row, round_)
            if row >= end:
                return  # is never delivered
            e = (row * self.lanes + lane) // size  # a pass ends a pool, too
            low, high = (-((lane - each * size) // self.lanes) for each in (e, e + 1))
            low, high = max(begin, low), min(end, high)
            base = derive_key(self.seed, "round", key * self.lanes + lane)
            yield low, high, Permutation(high - low, derive_key(base, member, e))
            row = high

    def _pool(self, member: int, lane: int, row: int, round_: int) -> tuple[int, int, int]:
        """Return begin, end and first round of the pool that holds a row of a member."""
        opened = [[int(each[member]) for each in pools] for pools in self._open(lane)]
        j = max(j for j, (_, end, _) in enumerate(opened) if row >= end)
        if j + 1 < len(opened) and opened[j + 1][0] <= row:
            begin, end, key = opened[j + 1]
            return begin, end, key
        borders = (self.mixture.drawn(each, lane, j + 1) for each in self._round(round_))
        begin, end = (int(drawn[member]) for drawn in borders)
        return max(begin, opened[j][1]), end, round_

    def _open_pools(self, lane: int) -> list[_Pools]:
        """Return the pools in which each stage begins; the stage does not change them."""
        mixture, none = self.mixture, np.zeros(len(self.mixture.members), np.int64)
        found = [_Pools(none, none, none)]
        for j, (place, _) in enumerate(mixture.stages[1:], start=1):
            row, before = place // self.lanes, found[-1]
            borders = self._round(max(row - 1, 0))
            begin, end = (mixture.drawn(each, lane, j) for each in borders)
            begin, drawn = np.maximum(begin, before.end), mixture.drawn(row, lane, j)
            used = begin < drawn  # otherwise, nothing of the pool was delivered
            pools = np.where(used, begin, drawn), np.where(used, end, drawn), none + borders[0]
            still = drawn <= before.end  # in the pool of an earlier stage
            pairs = zip(before, pools, strict=True)
            found.append(_Pools(*(np.where(still, old, new) for old, new in pairs)))
        return found
