"""Mixtures of sources that are read in blocks: a window per member and lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.arguments import whole_number
from penstock.order.blocks import Span
from penstock.order.keys import derive_key
from penstock.order.mixture import MixtureOrder
from penstock.order.orders import at_epochs, check_positions, first_positions
from penstock.order.permutation import Indices, Permutation
from penstock.order.subset import RaggedBlockOrder
from penstock.order.windows import Recent


class BlockLines(RaggedBlockOrder):
    """The blocks of a member, permuted in every pass and laid end to end, one line per lane.

    Samples of a block follow each other; `MixedBlocks` shuffles them in its windows.

    Args:
        size: Samples of the member.
        seed: Of the permutations.
        block: Samples per block.
        lanes: Independent readers.

    >>> BlockLines(10, seed=1, block=5).at(0, np.arange(5)).tolist()
    [5, 6, 7, 8, 9]
    """

    kind = "lines"

    def __init__(self, size: int, seed: int, block: int, lanes: int = 1) -> None:
        counts = np.minimum(block, size - np.arange(0, size, block))
        super().__init__(counts, seed, window=1, lanes=lanes)

    def _shuffle_windows(
        self, epoch: int, y: Indices, lane: Indices, *, backwards: bool
    ) -> Indices:
        return y


class _Pools(NamedTuple):
    """For every member: rows ``begin`` to ``end`` of it, which are shuffled together.

    ``round`` is the first row of the lane in the round that they were first read in.
    """

    begin: Indices
    end: Indices
    round: Indices


class _Window(NamedTuple):
    """One lane's rows of a round: sample and pass of each, and the rows in reading order."""

    samples: Indices
    passes: Indices
    rows: Indices


class MixedBlocks:
    """A mixture whose members are read in blocks, a round of windows at a time.

    In every lane a round has ``block * window`` rows. What a member contributes to them is one
    range of its line of permuted blocks, so each block is read once, or twice where a round ends
    inside it. Within a round, the samples of a member and pass are shuffled by key: a *pool*.

    A stage that begins inside a round leaves the pools of that round as they were, so that it
    changes nothing before it: what is left of a pool comes first, then pools of the new shares.

    Args:
        sizes: Samples of each member; a sample of the mixture is counted through all of them.
        stages: ``(first place, counts)``, as in `MixtureOrder`.
        seed: Of all shuffles.
        block: Samples per block.
        window: Blocks that a lane holds, over all members.
        lanes: Independent readers; a multiple of the number of ranks.
        until: Places per epoch, as in `MixtureOrder`; the next multiple of the lanes is used.

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
        self.block = whole_number("block", block, minimum=1, unit="sample")
        self.window = whole_number("window", window, minimum=1, unit="block")
        keys = [derive_key(seed, "member", i) for i in range(len(sizes))]
        lines = [BlockLines(n, key, block, lanes) for n, key in zip(sizes, keys, strict=True)]
        if isinstance(until, str):  # an epoch is as long as the first stage makes it
            until = MixtureOrder(lines, stages[:1], seed, lanes, until).size
        until = -(-until // lanes) * lanes  # so that an epoch begins with lane 0
        self.mixture = MixtureOrder(lines, stages, seed, lanes, until)
        self.size, self.samples, self.seed = self.mixture.size, self.mixture.samples, seed
        self.lanes = lanes
        self._rows = self.size // lanes  # of a lane in an epoch
        self.window_samples = min(self.block * self.window, self._rows)
        self.rounds = -(-self.size // (self.window_samples * lanes))
        self._windows = Recent(self._window, keep=lanes + 1)
        self._open = Recent(self._open_pools, keep=lanes + 1)

    def identity(self) -> dict[str, Any]:
        """Return the identity of the mixture, and the geometry."""
        return self._named(self.mixture.identity())

    def identity_for(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the identity that a state must have: stages that begin after it may be new."""
        return self._named(self.mixture.identity_for(state))

    def _named(self, identity: dict[str, Any]) -> dict[str, Any]:
        return identity | {"order": self.kind, "block": self.block, "window": self.window}

    # -- the order

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the samples at these positions of this epoch."""
        return self.at_with_passes(epoch, positions)[0]

    def passes(self, epoch: int, positions: Indices) -> Indices:
        """Return how often each sample came before."""
        return self.at_with_passes(epoch, positions)[1]

    def at_with_passes(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        """Return the samples at these positions, and how often each came before."""
        positions = check_positions(positions, self.size)
        row, lane = np.divmod(positions, self.lanes)
        k, row = np.divmod(row, self.window_samples)
        samples, passes = np.empty_like(positions), np.empty_like(positions)
        which = k * self.lanes + lane
        for each in np.unique(which).tolist():
            here, window = which == each, self._windows(epoch, *divmod(each, self.lanes))
            samples[here], passes[here] = window.samples[row[here]], window.passes[row[here]]
        return samples, passes

    def positions_of(self, epoch: int, sample: int) -> Indices:
        """Return all positions of a sample in an epoch, ascending."""
        member, draws = self.mixture.draws_of(epoch, sample)
        moved = [self._moved(member, draw) for draw in draws.tolist()]
        return self.mixture.positions_of_draws(epoch, member, np.array(moved, np.int64))

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the first position of each sample in this epoch."""
        return first_positions(self, epoch, samples)

    # -- what a reader needs: one lane's window

    def round_of(self, epoch: int, position: int) -> int:
        """Return the round that contains a position."""
        return position // (self.window_samples * self.lanes)

    def round_start(self, epoch: int, k: int) -> int:
        """Return the first position of round ``k``; for ``k = rounds``, the end of the epoch."""
        return min(k * self.window_samples * self.lanes, self.size)

    def window_reads(self, epoch: int, k: int, column: int) -> list[Span]:
        """Return what a lane reads for a window: blocks of all members, or parts of them."""
        window = self._windows(epoch, k, column)
        samples = window.samples[window.rows]
        if not len(samples):
            return []
        member = np.searchsorted(self.mixture.first, samples, side="right") - 1
        block = (samples - self.mixture.first[member]) // self.block
        new = (np.diff(samples) != 1) | (np.diff(block) != 0) | (np.diff(member) != 0)
        begins = np.concatenate([[0], np.flatnonzero(new) + 1])
        counts = np.diff(begins, append=len(samples))
        return [Span(*each) for each in zip(samples[begins].tolist(), counts.tolist(), strict=True)]

    def window_positions(
        self, epoch: int, k: int, column: int, begin: int = 0, end: int | None = None
    ) -> Indices:
        """Return the position of each sample of the window, in the order of `window_reads`."""
        rows = self._windows(epoch, k, column).rows[begin:end]
        return (k * self.window_samples + rows) * self.lanes + column

    def _window(self, epoch: int, k: int, lane: int) -> _Window:
        begin, end = (self.round_start(epoch, each) // self.lanes for each in (k, k + 1))
        places = epoch * self.size + np.arange(begin, end) * self.lanes + lane
        member, draw = self.mixture.draws(places)
        passes = draw // self.mixture.sizes[member]
        samples = self.mixture.first[member]
        first = epoch * self._rows + begin
        for i in np.unique(member).tolist():
            here = np.flatnonzero(member == i)
            rows = draw[here] // self.lanes
            for low, high, shuffle in self._shuffles(i, lane, int(rows[0]), int(rows[-1]), first):
                inside = (rows >= low) & (rows < high)
                rows[inside] = low + shuffle(rows[inside] - low)
            own = np.divmod(rows * self.lanes + lane, self.mixture.sizes[i])
            samples[here] += at_epochs(self.mixture.members[i], *own)
        return _Window(samples, passes, np.lexsort((samples, passes)))

    def _moved(self, member: int, draw: int) -> int:
        """Return the draw of a member in whose place another one comes: the inverse."""
        row, lane = divmod(draw, self.lanes)
        place = int(self.mixture.place_of_draw(member, np.array([draw]))[0])
        # a draw that no longer comes can be in a pool of before
        at = place // self.lanes if place >= 0 else int(self._open(lane)[-1].round[member])
        for low, high, shuffle in self._shuffles(member, lane, row, row, self._round(at)[0]):
            if low <= row < high:
                row = low + int(shuffle.inverse(np.array([row - low]))[0])
                return row * self.lanes + lane
        return draw

    # -- pools

    def _round(self, row: int) -> tuple[int, int]:
        """Return the first row of the round that has a row of a lane, and of the next round."""
        epoch, row = divmod(row, self._rows)
        begin = row // self.window_samples * self.window_samples
        end = min(begin + self.window_samples, self._rows)
        return epoch * self._rows + begin, epoch * self._rows + end

    def _shuffles(
        self, member: int, lane: int, first: int, last: int, round_: int
    ) -> Iterator[tuple[int, int, Permutation]]:
        """Yield the pools that have rows ``first`` to ``last`` of a member, which a round has."""
        size, row = int(self.mixture.sizes[member]), first
        while row <= last:
            begin, end, key = self._pool(member, lane, row, round_)
            if row >= end:
                return  # never comes
            e = (row * self.lanes + lane) // size  # a pass ends a pool, too
            low, high = (-((lane - each * size) // self.lanes) for each in (e, e + 1))
            low, high = max(begin, low), min(end, high)
            base = derive_key(self.seed, "round", key * self.lanes + lane)
            yield low, high, Permutation(high - low, derive_key(base, member, e))
            row = high

    def _pool(self, member: int, lane: int, row: int, round_: int) -> tuple[int, int, int]:
        """Return begin, end and first round of the pool with a row of a member."""
        opened = [[int(each[member]) for each in pools] for pools in self._open(lane)]
        j = max(j for j, (_, end, _) in enumerate(opened) if row >= end)
        if j + 1 < len(opened) and opened[j + 1][0] <= row:
            begin, end, key = opened[j + 1]
            return begin, end, key
        borders = (self.mixture.drawn(each, lane, j + 1) for each in self._round(round_))
        begin, end = (int(drawn[member]) for drawn in borders)
        return max(begin, opened[j][1]), end, round_

    def _open_pools(self, lane: int) -> list[_Pools]:
        """Return the pools that each stage begins in; they stay as they are."""
        mixture, none = self.mixture, np.zeros(len(self.mixture.members), np.int64)
        found = [_Pools(none, none, none)]
        for j, (place, _) in enumerate(mixture.stages[1:], start=1):
            row, before = place // self.lanes, found[-1]
            borders = self._round(max(row - 1, 0))
            begin, end = (mixture.drawn(each, lane, j) for each in borders)
            begin, drawn = np.maximum(begin, before.end), mixture.drawn(row, lane, j)
            used = begin < drawn  # else nothing of it was delivered
            pools = np.where(used, begin, drawn), np.where(used, end, drawn), none + borders[0]
            still = drawn <= before.end  # in the pool of a stage before
            pairs = zip(before, pools, strict=True)
            found.append(_Pools(*(np.where(still, old, new) for old, new in pairs)))
        return found
