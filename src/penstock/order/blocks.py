"""Orders for storage that is read in blocks: shuffled (`BlockOrder`) and in sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from penstock.arguments import whole_number
from penstock.order.orders import SequentialOrder, check_positions, check_seed, check_size
from penstock.order.permutation import Indices, Permutation, derive_key, permutation

Number = TypeVar("Number", int, Indices)


@dataclass(frozen=True, slots=True)
class Span:
    """Samples ``start`` to ``start + count``, consecutive in storage, within one block.

    Args:
        start: The first sample.
        count: Number of samples.
        take: The samples to deliver, counted from ``start``, ascending, possibly repeated; None to
            deliver each of them once.
        turn: The pass of all of them, if it matters and is not the epoch.
    """

    start: int
    count: int
    take: Indices | None = None
    turn: int | None = field(default=None, repr=False)

    @property
    def items(self) -> int:
        """The number of rows that are delivered."""
        return self.count if self.take is None else len(self.take)


class BlockOrder:
    """A shuffled order for storage that is read in blocks by ``lanes`` readers.

    Geometry, fixed for all epochs (n samples, B per block, L lanes, W rows per window)::

        full   = n // B                 whole blocks; the short last one is not among them
        rows   = full // L              whole blocks that every lane reads in an epoch
        left   = n - rows * L * B       leftover: fewer than L whole blocks, and the short one
        rounds = max(1, ceil(rows / W)) of balanced size: rows // rounds rows, or one more

    Per epoch the whole blocks are permuted; row i of the permuted list holds entries
    ``i*L .. i*L+L-1``, one for each lane. One keyed round, the extra one, also takes the leftover,
    cut into L contiguous slices of less than a block each. A lane's window is its column of the
    round's rows (and its slice), permuted by a key of its own. The positions of a round take one
    sample from the window of each lane in turn.

    Therefore ``lane = position % lanes`` everywhere; a lane holds at most ``(W + 1) * B`` samples;
    every whole block except for leftover ones is read by one lane; windows are never tiny; and
    neither the short block nor any other sample is always last, or always dropped.

    Args:
        size: Samples of the order.
        seed: Seed of the shuffles, in [0, 2**64).
        block: Samples per block.
        window: Blocks per window, the unit that is held in memory and shuffled.
        lanes: Readers with separate blocks; a multiple of the number of ranks.

    >>> order = BlockOrder(23, seed=42, block=3, window=2, lanes=2)
    >>> order.at(1, np.arange(6))
    array([18, 12, 20, 13,  5,  6])
    """

    kind = "block"

    def __init__(self, size: int, seed: int, block: int, window: int, lanes: int = 1) -> None:
        self.size, self.seed = check_size(size), check_seed(seed)
        self.block = whole_number("block", block, minimum=1)
        self.window = whole_number("window", window, minimum=1)
        self.lanes = whole_number("lanes", lanes, minimum=1)
        self.full = self.size // self.block
        self.rows = self.full // self.lanes
        self.left = self.size - self.rows * self.lanes * self.block
        self._unit = min(self.lanes * self.block, self.size)  # samples per row; unused without rows
        self.rounds = max(1, -(-self.rows // self.window))
        self._each, self._more = divmod(self.rows, self.rounds)
        self._slice_each, self._slice_more = divmod(self.left, self.lanes)

    def identity(self) -> dict[str, Any]:
        """Return kind, size, seed and geometry: other blocks give another order."""
        return {
            "order": self.kind,
            "samples": self.size,
            "seed": self.seed,
            "block": self.block,
            "window": self.window,
            "lanes": self.lanes,
        }

    # -- the order itself

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the samples at these positions of this epoch."""
        k, column, index, length = self.locate(epoch, positions)
        i = self._shuffle_windows(epoch, k, column, length, index, backwards=False)
        whole = self._round_rows(k) * self.block
        sliced = i >= whole
        slot = self._slice_start(column) + (i - whole)  # within the leftover
        row = self._first_row(k) + i // self.block
        entry = np.where(
            sliced, self.rows * self.lanes + slot // self.block, row * self.lanes + column
        )
        offset: Indices = np.where(sliced, slot, i) % self.block
        return self._block_at(epoch, entry) * self.block + offset

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the positions of these samples: the inverse of `at`."""
        samples = check_positions(samples, self.size)
        entry, offset = self._entry_of(epoch, samples // self.block), samples % self.block
        sliced = entry >= self.rows * self.lanes
        slot = (entry - self.rows * self.lanes) * self.block + offset
        column = np.where(sliced, self._column_of_slot(slot), entry % self.lanes)
        row = np.where(sliced, 0, entry // self.lanes)
        k = np.where(sliced, self.extra_round(epoch), self._round_of_row(row))
        whole = self._round_rows(k) * self.block
        i = np.where(
            sliced,
            whole + slot - self._slice_start(column),
            (row - self._first_row(k)) * self.block + offset,
        )
        length = whole + np.where(k == self.extra_round(epoch), self._slice_length(column), 0)
        index = self._shuffle_windows(epoch, k, column, length, i, backwards=True)
        return self._round_starts(epoch, k) + index * self.lanes + column

    def locate(self, epoch: int, positions: Indices) -> tuple[Indices, Indices, Indices, Indices]:
        """Return round, column, index in the window and length of the window of each position.

        Args:
            epoch: The epoch, counted from 0.
            positions: Positions in its order.
        """
        p = check_positions(positions, self.size)
        extra = self.extra_round(epoch)
        begin = self._first_row(extra) * self._unit  # where the extra round begins, and ends
        end = self._first_row(extra + 1) * self._unit + self.left
        inside = (p >= begin) & (p < end)
        row = np.where(inside, 0, np.where(p >= end, p - self.left, p)) // self._unit
        k = np.where(inside, extra, self._round_of_row(row))
        q = p - self._round_starts(epoch, k)
        column, index = q % self.lanes, q // self.lanes
        length = self._round_rows(k) * self.block
        return k, column, index, length + np.where(k == extra, self._slice_length(column), 0)

    # -- what a reader needs: one lane's window

    def extra_round(self, epoch: int) -> int:
        """Return the round that also takes the leftover.

        Args:
            epoch: The epoch, counted from 0.
        """
        return derive_key(self.seed, "extra", epoch) % self.rounds

    def round_start(self, epoch: int, k: int) -> int:
        """Return the first position of a round.

        Args:
            epoch: The epoch, counted from 0.
            k: The round, counted from 0; for ``rounds``, the end of the epoch is returned.
        """
        left = self.left if k > self.extra_round(epoch) else 0
        return self._first_row(k) * self._unit + left

    def round_of(self, epoch: int, position: int) -> int:
        """Return the round that contains a position.

        Args:
            epoch: The epoch, counted from 0.
            position: A position in its order.
        """
        return int(self.locate(epoch, np.array([position]))[0][0])

    def window_reads(self, epoch: int, k: int, column: int) -> list[Span]:
        """Return what a lane reads for a window: whole blocks, then parts of leftover ones.

        Args:
            epoch: The epoch, counted from 0.
            k: The round of the window.
            column: The lane.
        """
        rows = np.arange(self._first_row(k), self._first_row(k + 1))
        blocks = self._block_at(epoch, rows * self.lanes + column)
        reads = [Span(b * self.block, self.block) for b in blocks.tolist()]
        if k == self.extra_round(epoch):
            slot, rest = self._slice_start(column), self._slice_length(column)
            while rest:
                entry, offset = divmod(slot, self.block)
                count = min(rest, self.block - offset)
                at = np.array([self.rows * self.lanes + entry])
                reads.append(Span(int(self._block_at(epoch, at)[0]) * self.block + offset, count))
                slot, rest = slot + count, rest - count
        return reads

    def window_positions(
        self, epoch: int, k: int, column: int, begin: int = 0, end: int | None = None
    ) -> Indices:
        """Return the position of each sample of the window, in the order of `window_reads`.

        Args:
            epoch: The epoch.
            k: The round.
            column: The lane, counted from the one that the round begins with.
            begin: The first sample of the window to return.
            end: One past the last one; None for the end of the window.
        """
        length = self._round_rows(k) * self.block
        if k == self.extra_round(epoch):
            length += self._slice_length(column)
        if not length:
            return np.empty(0, np.int64)
        key = derive_key(derive_key(self.seed, "window", epoch), k, column)
        asked = np.arange(begin, length if end is None else end)
        index = Permutation(length, key).inverse(asked)
        index *= self.lanes
        index += self.round_start(epoch, k) + column
        return index

    @property
    def window_samples(self) -> int:
        """The most samples that a lane holds in one window."""
        each = self._each + bool(self._more)
        return each * self.block + self._slice_each + bool(self._slice_more)

    # -- geometry

    def _first_row(self, k: Number) -> Number:
        more = min(k, self._more) if isinstance(k, int) else np.minimum(k, self._more)
        return k * self._each + more

    def _round_rows(self, k: Number) -> Number:
        return self._first_row(k + 1) - self._first_row(k)

    def _round_of_row(self, row: Indices) -> Indices:
        big = self._more * (self._each + 1)
        rest = self._more + (row - big) // max(self._each, 1)
        return np.where(row < big, row // (self._each + 1), rest)

    def _round_starts(self, epoch: int, k: Indices) -> Indices:
        left = np.where(k > self.extra_round(epoch), self.left, 0)
        return self._first_row(k) * self._unit + left

    def _slice_start(self, column: Number) -> Number:
        more = self._slice_more
        first = min(column, more) if isinstance(column, int) else np.minimum(column, more)
        return column * self._slice_each + first

    def _slice_length(self, column: Number) -> Number:
        return self._slice_start(column + 1) - self._slice_start(column)

    def _column_of_slot(self, slot: Indices) -> Indices:
        each, more = self._slice_each, self._slice_more
        big = more * (each + 1)
        return np.where(slot < big, slot // (each + 1), more + (slot - big) // max(each, 1))

    # -- shuffles

    def _blocks(self, epoch: int) -> Permutation:
        return permutation(self.full, derive_key(self.seed, "blocks", epoch))

    def _block_at(self, epoch: int, entry: Indices) -> Indices:
        """Return the block at an entry of the permuted list; the short block is its last entry."""
        whole = entry < self.full
        if whole.all() and entry.size:
            return self._blocks(epoch)(entry)
        block = entry.copy()
        if whole.any():
            block[whole] = self._blocks(epoch)(entry[whole])
        return block

    def _entry_of(self, epoch: int, block: Indices) -> Indices:
        entry, whole = block.copy(), block < self.full
        if whole.any():
            entry[whole] = self._blocks(epoch).inverse(block[whole])
        return entry

    def _shuffle_windows(
        self,
        epoch: int,
        k: Indices,
        column: Indices,
        length: Indices,
        index: Indices,
        *,
        backwards: bool,
    ) -> Indices:
        """Return each index permuted within its own window."""
        out = np.empty_like(index)
        base = derive_key(self.seed, "window", epoch)
        windows, first, of = np.unique(
            k * self.lanes + column, return_index=True, return_inverse=True
        )
        if windows.size * 64 > index.size:  # many windows: a key for every index
            for n in np.unique(length):  # at most four lengths in an epoch
                here = length == n
                shuffle = Permutation(int(n), np.asarray(derive_key(base, k[here], column[here])))
                out[here] = shuffle.inverse(index[here]) if backwards else shuffle(index[here])
            return out
        for w, at in enumerate(first.tolist()):  # few windows: one key for many indices
            here = of == w
            shuffle = Permutation(int(length[at]), derive_key(base, int(k[at]), int(column[at])))
            out[here] = shuffle.inverse(index[here]) if backwards else shuffle(index[here])
        return out


class StoredOrder(SequentialOrder):
    """A sequential order that is read in blocks, ``window`` of them at a time.

    It has the identity of a `SequentialOrder`: how it is read is not part of its state.

    Args:
        size: Samples of the order.
        seed: Not used by the order, but by what is keyed by it.
        block: Samples per block.
        window: Blocks that are read together.

    >>> order = StoredOrder(10, block=2, window=2)
    >>> order.rounds, order.window_reads(0, 2, 0)
    (3, [Span(start=8, count=2, take=None)])
    """

    def __init__(self, size: int, seed: int = 0, *, block: int, window: int) -> None:
        super().__init__(size, seed)
        self.block, self.window = block, window
        self.window_samples = min(block * window, self.size)
        self.rounds = -(-self.size // self.window_samples)

    def round_of(self, epoch: int, position: int) -> int:
        """Return the round that contains a position."""
        return position // self.window_samples

    def round_start(self, epoch: int, k: int) -> int:
        """Return the first position of round ``k``; for ``k = rounds``, the end of the epoch."""
        return min(k * self.window_samples, self.size)

    def window_reads(self, epoch: int, k: int, column: int) -> list[Span]:
        """Return the blocks of the round."""
        begin, end = self.round_start(epoch, k), self.round_start(epoch, k + 1)
        return [Span(at, min(self.block, end - at)) for at in range(begin, end, self.block)]

    def window_positions(
        self, epoch: int, k: int, column: int, begin: int = 0, end: int | None = None
    ) -> Indices:
        """Return the positions of samples ``begin`` to ``end`` of the round: they are the same."""
        first, stop = self.round_start(epoch, k), self.round_start(epoch, k + 1)
        return np.arange(first + begin, stop if end is None else first + end)
