"""Mixtures of sources that are read in blocks: a window per member and lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.arguments import whole_number
from penstock.order.blocks import Span
from penstock.order.keys import derive_key
from penstock.order.mixture import MixtureOrder
from penstock.order.orders import check_positions
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


class _Window(NamedTuple):
    """One lane's rows of a round: sample and pass of each, and the rows in reading order."""

    samples: Indices
    passes: Indices
    rows: Indices


class MixedBlocks:
    """A mixture whose members are read in blocks, a round of windows at a time.

    In every lane a round has ``block * window`` rows. What a member contributes to them is one
    range of its line of permuted blocks, so each block is read once, or twice where a round ends
    inside it. Within a round, the samples of a member and pass are shuffled by key.

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
        self.window_samples = min(self.block * self.window, self.size // lanes)
        self.rounds = -(-self.size // (self.window_samples * lanes))
        self._windows = Recent(self._window, keep=lanes + 1)

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
        # the mixture has it in the same round and lane
        near = self.mixture.positions_of(epoch, sample)
        found = set[int]()
        for p in near.tolist():
            k, lane = p // self.lanes // self.window_samples, p % self.lanes
            rows = np.flatnonzero(self._windows(epoch, k, lane).samples == sample)
            found |= set(((k * self.window_samples + rows) * self.lanes + lane).tolist())
        return np.array(sorted(found), np.int64)

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the first position of each sample in this epoch."""
        found = [self.positions_of(epoch, sample) for sample in np.ravel(samples).tolist()]
        if not all(map(len, found)):
            raise IndexError(f"some of these samples do not come in epoch {epoch}")
        return np.array([positions[0] for positions in found], np.int64)

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
        passes, inner = np.divmod(draw, self.mixture.sizes[member])
        samples = self.mixture.first[member]
        base = derive_key(self.seed, "round", int(places[0]))
        for i in np.unique(member).tolist():
            for e in np.unique(passes[member == i]).tolist():
                here = np.flatnonzero((member == i) & (passes == e))
                shuffle = Permutation(len(here), derive_key(base, i, e))
                own = inner[here[shuffle(np.arange(len(here)))]]
                samples[here] += self.mixture.members[i].at(e, own)
        return _Window(samples, passes, np.lexsort((samples, passes)))
