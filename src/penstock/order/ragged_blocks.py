"""Orders over storage blocks that hold different numbers of items, each block read once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.arguments import array_of, whole_number
from penstock.errors import PlanError
from penstock.order.keys import derive_key, digest_of
from penstock.order.orders import check_positions, check_seed
from penstock.order.permutation import Indices, Permutation
from penstock.order.windows import Recent


@dataclass(frozen=True, slots=True)
class RaggedWindow:
    """Rows ``start`` to ``stop`` of one lane, and the blocks they are read from.

    Args:
        start: The first row; row i of a lane is position ``i * lanes + lane``.
        stop: One past the last row.
        reads: Block, first item in it, and number of items.
    """

    start: int
    stop: int
    reads: tuple[tuple[int, int, int], ...]


class _Layout(NamedTuple):
    """One epoch: its blocks in order, where each begins on the line, and each lane's part."""

    shuffle: Permutation
    blocks: Indices
    line: Indices
    cut: Indices  # items of the line: lane l has cut[l] to cut[l + 1]
    first: Indices  # of each lane: the entry of its first block
    held: Indices  # ... the number of its blocks
    windows: Indices  # ... the number of its windows


class RaggedBlockOrder:
    """A shuffle of items in storage blocks of unequal numbers of items.

    Per epoch the blocks that hold something are permuted and laid end to end: a line of n items.
    The line is cut into one part per lane, equal except for one item: at most ``lanes - 1`` blocks
    are cut, and those are read by two lanes. The blocks of a lane come in balanced windows of at
    most ``window`` whole blocks, permuted by a key of each window. Position p is row ``p // lanes``
    of lane ``p % lanes``.

    Memory is two integers per block. Items are numbered in storage order; `SubsetOrder` turns them
    into samples by a bitmap, `WeightedBlocks` by points.

    Args:
        counts: Items of each block.
        seed: Of the shuffles.
        window: Blocks per window.
        lanes: Independent readers.

    >>> order = RaggedBlockOrder([4, 0, 3, 1], seed=42, window=2)
    >>> sorted(order.at(0, np.arange(8)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    kind = "ragged"

    def __init__(self, counts: npt.ArrayLike, seed: int, window: int, lanes: int = 1) -> None:
        self.seed = check_seed(seed)
        self.window = whole_number("window", window, minimum=1, unit="block")
        self.lanes = whole_number("lanes", lanes, minimum=1)
        self.counts: Indices = array_of("counts", counts).astype(np.int64)
        self.first_item: Indices = np.concatenate([[0], np.cumsum(self.counts)])
        self.size = self.samples = int(self.first_item[-1])
        if not self.size:
            raise PlanError("no block holds a sample: at least one must")
        self._filled = np.flatnonzero(self.counts)
        self._entry_of_block = np.cumsum(self.counts > 0) - 1
        self._layout = Recent(self._lay_out)

    def identity(self) -> dict[str, Any]:
        """Return kind, size, seed and geometry."""
        return {
            "order": self.kind,
            "samples": self.samples,
            "seed": self.seed,
            "window": self.window,
            "lanes": self.lanes,
            "blocks": digest_of(self.counts),
        }

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the items at these positions of this epoch."""
        of = self._layout(epoch)
        row, lane = np.divmod(check_positions(positions, self.size), self.lanes)
        y = self._shuffle_windows(epoch, of.cut[lane] + row, lane, backwards=False)
        entry = np.searchsorted(of.line, y, side="right") - 1
        found: Indices = self.first_item[of.blocks[entry]] + y - of.line[entry]
        return found

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the positions of these items: the inverse of `at`."""
        items, of = check_positions(samples, self.size), self._layout(epoch)
        block = np.searchsorted(self.first_item, items, side="right") - 1
        entry = of.shuffle.inverse(self._entry_of_block[block])
        y = of.line[entry] + items - self.first_item[block]
        lane = np.searchsorted(of.cut, y, side="right") - 1
        row = self._shuffle_windows(epoch, y, lane, backwards=True) - of.cut[lane]
        found: Indices = row * self.lanes + lane
        return found

    def windows(self, epoch: int, lane: int) -> Iterator[RaggedWindow]:
        """Yield the windows of a lane in the order in which its reader needs them."""
        of = self._layout(epoch)
        origin = int(of.cut[lane])
        if origin == of.cut[lane + 1]:
            return  # fewer items than lanes
        for k in range(int(of.windows[lane])):
            begin, end = (int(v) for v in self._borders(of, np.array(lane), np.array(k)))
            low, high = np.searchsorted(of.line, begin, "right") - 1, np.searchsorted(of.line, end)
            line = np.clip(of.line[low : high + 1], begin, end)
            offsets = line[:-1] - of.line[low:high]
            reads = np.stack([of.blocks[low:high], offsets, np.diff(line)], axis=1).tolist()
            yield RaggedWindow(begin - origin, end - origin, tuple((b, a, n) for b, a, n in reads))

    def _lay_out(self, epoch: int) -> _Layout:
        shuffle = Permutation(len(self._filled), derive_key(self.seed, "blocks", epoch))
        blocks = self._filled[shuffle(np.arange(len(self._filled)))]
        line = np.concatenate([[0], np.cumsum(self.counts[blocks])])
        lane = np.arange(self.lanes + 1)
        each, more = divmod(self.size, self.lanes)
        cut = lane * each + np.minimum(lane, more)
        first = np.searchsorted(line, cut[:-1], side="right") - 1
        held = np.where(np.diff(cut) > 0, np.searchsorted(line, cut[1:]) - first, 1)
        return _Layout(shuffle, blocks, line, cut, first, held, -(-held // self.window))

    def _borders(self, of: _Layout, lane: Indices, k: Indices) -> tuple[Indices, Indices]:
        """Return where window ``k`` of a lane begins and ends on the line."""
        each, more = np.divmod(of.held[lane], of.windows[lane])
        begin, end = (of.first[lane] + i * each + np.minimum(i, more) for i in (k, k + 1))
        return np.maximum(of.line[begin], of.cut[lane]), np.minimum(of.line[end], of.cut[lane + 1])

    def _shuffle_windows(
        self, epoch: int, y: Indices, lane: Indices, *, backwards: bool
    ) -> Indices:
        """Return each item of the line permuted within its own window."""
        of = self._layout(epoch)
        entry = np.searchsorted(of.line, y, side="right") - 1 - of.first[lane]
        each, more = np.divmod(of.held[lane], of.windows[lane])
        long = more * (each + 1)
        k = np.where(entry < long, entry // (each + 1), more + (entry - long) // each)
        begin, end = self._borders(of, lane, k)
        found, base = np.empty_like(y), derive_key(self.seed, "window", epoch)
        _, firsts, which = np.unique(begin, return_index=True, return_inverse=True)
        for w, at in enumerate(firsts.tolist()):
            here = which == w
            shuffle = Permutation(
                int(end[at] - begin[at]), derive_key(base, int(lane[at]), int(k[at]))
            )
            inside = y[here] - begin[at]
            found[here] = begin[at] + (shuffle.inverse(inside) if backwards else shuffle(inside))
        return found
