"""Orders that are read in rounds of blocks, whatever the order of their samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.arguments import array_of, whole_number
from penstock.errors import PlanError
from penstock.fingerprints import digest_of
from penstock.order.blocks import Span
from penstock.order.orders import (
    Order,
    Recent,
    Repeating,
    at_with_passes,
    check_positions,
    check_seed,
    positions_of,
    samples_of,
)
from penstock.order.permutation import Indices, Permutation, derive_key, permutation

ROUNDS_KEPT = 3  # the one that is delivered, and two that are planned


class LineLayout(NamedTuple):
    """One epoch: its blocks in order, where each begins on the line, and each lane's part."""

    blocks: Indices
    line: Indices
    cut: Indices  # items of the line: lane l has cut[l] to cut[l + 1]


class BlockLines:
    """Storage blocks, permuted in every epoch and laid end to end: one line per lane.

    The blocks may hold different numbers of items; those that hold none are left out. The line of
    all items is cut into one part per lane, equal except for one item: at most ``lanes - 1`` blocks
    are cut. Position p is row ``p // lanes`` of lane ``p % lanes``. Items of a block are
    consecutive: the orders that use the lines shuffle them within rounds.

    Args:
        counts: Items of each block; items are numbered in storage order.
        seed: Seed of the permutations.
        lanes: Independent readers.

    >>> BlockLines([5, 0, 5], seed=1).at(0, np.arange(5)).tolist()
    [5, 6, 7, 8, 9]
    """

    kind = "lines"

    def __init__(self, counts: npt.ArrayLike, seed: int, lanes: int = 1) -> None:
        self.seed = check_seed(seed)
        self.lanes = whole_number("lanes", lanes, minimum=1)
        self.counts: Indices = array_of("counts", counts).astype(np.int64)
        self.first_item: Indices = np.concatenate([[0], np.cumsum(self.counts)])
        self.size = int(self.first_item[-1])
        if not self.size:
            raise PlanError("all blocks are empty: at least one must hold a sample")
        self._filled = np.flatnonzero(self.counts)
        self._entry_of_block = np.cumsum(self.counts > 0) - 1
        self.layout = Recent(self._lay_out)

    def identity(self) -> dict[str, Any]:
        """Return kind, size, seed, lanes and the digest of the blocks."""
        return {
            "order": self.kind,
            "samples": self.size,
            "seed": self.seed,
            "window": 1,  # part of the identity in existing states
            "lanes": self.lanes,
            "blocks": digest_of(self.counts),
        }

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the items at these positions of this epoch."""
        of = self.layout(epoch)
        row, lane = np.divmod(check_positions(positions, self.size), self.lanes)
        y = of.cut[lane] + row
        entry = np.searchsorted(of.line, y, side="right") - 1
        found: Indices = self.first_item[of.blocks[entry]] + y - of.line[entry]
        return found

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the positions of these items: the inverse of `at`."""
        items, of = check_positions(samples, self.size), self.layout(epoch)
        block = np.searchsorted(self.first_item, items, side="right") - 1
        y = of.line[self._shuffle(epoch).inverse(self._entry_of_block[block])]
        y += items - self.first_item[block]
        lane = np.searchsorted(of.cut, y, side="right") - 1
        found: Indices = (y - of.cut[lane]) * self.lanes + lane
        return found

    def _shuffle(self, epoch: int) -> Permutation:
        return permutation(len(self._filled), derive_key(self.seed, "blocks", epoch))

    def _lay_out(self, epoch: int) -> LineLayout:
        blocks = self._filled[self._shuffle(epoch)(np.arange(len(self._filled)))]
        line = np.concatenate([[0], np.cumsum(self.counts[blocks])])
        lane = np.arange(self.lanes + 1)
        each, more = divmod(self.size, self.lanes)
        return LineLayout(blocks, line, lane * each + np.minimum(lane, more))


class _Window(NamedTuple):
    """One lane's rows of a round: sample and pass of each, and the rows by sample."""

    samples: Indices
    passes: Indices | None
    by_sample: Indices


class BlockRounds(Repeating):
    """An order that is read in rounds: in each, every lane delivers the same number of rows.

    A round has ``block * window`` rows of each lane, whichever blocks they are from. So the memory
    of a round is known, and a block in which a round ends is read for both rounds. A subclass
    implements the rows of a round (`_rows`), and the inverse (`positions_of`).

    Args:
        size: Positions of an epoch.
        block: Samples per block.
        window: Size of a lane's window, in blocks.
        lanes: Independent readers.
        starts: The first sample of each stored part; its blocks are counted from there.

    Attributes:
        by_pass: Whether samples of different passes are read separately, because they differ.
    """

    samples: int
    by_pass = False

    def __init__(
        self, size: int, block: int, window: int, lanes: int, starts: npt.ArrayLike
    ) -> None:
        self.size, self.lanes = size, lanes
        self.block = whole_number("block", block, minimum=1, unit="sample")
        self.window = whole_number("window", window, minimum=1, unit="block")
        self._starts = np.asarray(starts)
        self.window_samples = min(self.block * self.window, -(-size // lanes))
        self.rounds = -(-size // (self.window_samples * lanes))
        self._windows = Recent(self._window, keep=ROUNDS_KEPT * lanes)

    @abstractmethod
    def _rows(self, epoch: int, k: int, lane: int) -> tuple[Indices, Indices | None]:
        """Return the sample and the pass of each row of a lane in a round."""

    def at_with_passes(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        """Return the samples at these positions, and how often each occurred before."""
        positions = check_positions(positions, self.size)
        row, lane = np.divmod(positions, self.lanes)
        k, row = np.divmod(row, self.window_samples)
        samples, passes = np.empty_like(positions), np.full_like(positions, epoch)
        which = k * self.lanes + lane
        for each in np.unique(which).tolist():
            here, window = which == each, self._windows(epoch, *divmod(each, self.lanes))
            samples[here] = window.samples[row[here]]
            if window.passes is not None:
                passes[here] = window.passes[row[here]]
        return samples, passes

    # -- what a reader needs: one lane's window

    def round_of(self, epoch: int, position: int) -> int:
        """Return the round that contains a position."""
        return position // (self.window_samples * self.lanes)

    def round_start(self, epoch: int, k: int) -> int:
        """Return the first position of round ``k``; for ``k = rounds``, the end of the epoch."""
        return min(k * self.window_samples * self.lanes, self.size)

    def rows_of(self, k: int, lane: int) -> tuple[int, int]:
        """Return the first row of a lane in a round, and one past the last."""
        begin = k * self.window_samples
        return begin, min(begin + self.window_samples, -((lane - self.size) // self.lanes))

    def window_reads(self, epoch: int, k: int, column: int) -> list[Span]:
        """Return what a lane reads for a window: one span of each block."""
        window = self._windows(epoch, k, column)
        samples = window.samples[window.by_sample]
        if not len(samples):
            return []
        part = np.searchsorted(self._starts, samples, side="right") - 1
        block = (samples - self._starts[part]) // self.block
        new = (np.diff(block) != 0) | (np.diff(part) != 0)
        passes = window.passes if self.by_pass else None
        if passes is not None:
            passes = passes[window.by_sample]
            new |= np.diff(passes) != 0
        begins = np.concatenate([[0], np.flatnonzero(new) + 1])
        ends = np.append(begins[1:], len(samples))
        starts, counts = samples[begins], samples[ends - 1] - samples[begins] + 1
        gaps = np.concatenate([[0], np.cumsum(np.diff(samples) != 1)])  # a repetition counts, too
        runs = gaps[ends - 1] == gaps[begins]
        turns = [None] * len(begins) if passes is None else passes[begins].tolist()
        return [
            Span(start, count, None if run else samples[begin:end] - start, turn)
            for start, count, run, begin, end, turn in zip(
                *(each.tolist() for each in (starts, counts, runs, begins, ends)),
                turns,
                strict=True,
            )
        ]

    def window_positions(
        self, epoch: int, k: int, column: int, begin: int = 0, end: int | None = None
    ) -> Indices:
        """Return the position of each sample of the window, in the order of `window_reads`."""
        rows = self._windows(epoch, k, column).by_sample[begin:end]
        return (k * self.window_samples + rows) * self.lanes + column

    def _window(self, epoch: int, k: int, lane: int) -> _Window:
        samples, passes = self._rows(epoch, k, lane)
        if self.by_pass and passes is not None:
            return _Window(samples, passes, np.lexsort((samples, passes)))
        return _Window(samples, passes, np.argsort(samples, kind="stable"))


class OrderInRounds(BlockRounds):
    """An order with one lane, read in rounds of blocks; it keeps the identity of that order.

    Args:
        order: Any order; each round should touch few blocks, as in a mixture of sequences.
        block: Samples per block.
        window: Size of a window, in blocks.
        starts: The first sample of each stored part.

    >>> from penstock.order.orders import SequentialOrder
    >>> order = OrderInRounds(SequentialOrder(10), block=4, window=1, starts=[0])
    >>> order.rounds, order.window_reads(0, 1, 0)
    (3, [Span(start=4, count=4, take=None)])
    """

    def __init__(self, order: Order, block: int, window: int, starts: npt.ArrayLike) -> None:
        super().__init__(order.size, block, window, 1, starts)
        self.order, self.kind, self.seed = order, order.kind, order.seed
        self.samples = samples_of(order)

    def identity(self) -> dict[str, Any]:
        """Return the identity of the order: how it is read is not part of it."""
        return self.order.identity()

    def identity_for(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the identity that a state must have."""
        find = getattr(self.order, "identity_for", None)
        return self.order.identity() if find is None else dict(find(state))

    def positions_of(self, epoch: int, sample: int) -> list[int]:
        """Return all positions of a sample in an epoch, ascending."""
        return positions_of(self.order, epoch, sample)

    def _rows(self, epoch: int, k: int, lane: int) -> tuple[Indices, Indices | None]:
        return at_with_passes(self.order, epoch, np.arange(*self.rows_of(k, lane)))
