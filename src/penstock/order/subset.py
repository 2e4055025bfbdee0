"""Selected samples of a source, and their order for storage that is read in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number
from penstock.order.block_rounds import BlockLines, LineLayout
from penstock.order.blocks import Span
from penstock.order.orders import SequentialOrder, check_positions
from penstock.order.permutation import Indices, Permutation, derive_key, permutation

LINE = 512  # samples for each stored count: 1.125 bits per sample in total
MANY_RANGES = 4096  # fewer are kept as ranges: their memory is negligible
RANGE_BYTES = 24  # of a range: its start, its stop, and the number of samples before it

_ONES = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


class Kept(Protocol):
    """Selected samples of a source, numbered in its order.

    Attributes:
        size: Samples of the source.
        count: Number of selected samples.
    """

    size: int
    count: int

    def select(self, numbers: Indices) -> Indices:
        """Return the samples of the source with these numbers."""
        ...

    def rank(self, samples: Indices) -> Indices:
        """Return how many samples are selected before each of these samples of the source."""
        ...

    def within(self, begin: int, end: int) -> Indices:
        """Return the selected samples in a range of the source, ascending."""
        ...

    def begins(self) -> Indices:
        """Return the numbers of the samples that do not continue the one before them."""
        ...

    def facts(self) -> npt.NDArray[Any]:
        """Return an array, in little-endian order, that no other selection has."""
        ...


class Ranges:
    """Selected samples as ranges: 24 bytes a range.

    Args:
        starts: The first sample of each range, ascending.
        stops: The end of each range; ranges are not empty and do not touch.
        size: Samples of the source.

    >>> kept = Ranges(np.array([2, 7]), np.array([4, 8]), 10)
    >>> kept.count, kept.select(np.arange(3)).tolist(), kept.rank(np.array([3, 9])).tolist()
    (3, [2, 3, 7], [1, 3])
    """

    def __init__(self, starts: Indices, stops: Indices, size: int) -> None:
        self.starts, self.stops, self.size = starts, stops, size
        ends = np.cumsum(stops - starts)
        self.count = int(ends[-1]) if len(ends) else 0
        self._begins: Indices = ends - (stops - starts)

    def select(self, numbers: Indices) -> Indices:
        """Return the samples of the source with these numbers."""
        at = np.searchsorted(self._begins, numbers, side="right") - 1
        return np.asarray(numbers + (self.starts - self._begins)[at])

    def rank(self, samples: Indices) -> Indices:
        """Return how many samples are selected before each of these samples of the source."""
        if not self.count:
            return np.zeros_like(samples)
        at = np.searchsorted(self.starts, samples, side="right") - 1
        inside = np.minimum(samples, self.stops[at]) - self.starts[at]
        return np.where(at < 0, 0, self._begins[at] + inside)

    def within(self, begin: int, end: int) -> Indices:
        """Return the selected samples in a range of the source, ascending."""
        first, last = self.rank(np.array([begin, end])).tolist()
        return self.select(np.arange(first, last))

    def begins(self) -> Indices:
        """Return the numbers of the samples that do not continue the one before them."""
        return self._begins

    def facts(self) -> npt.NDArray[Any]:
        """Return starts and stops."""
        return np.stack([self.starts, self.stops]).astype("<i8")


class Bitmap:
    """Selected samples as a bitmap: one bit per sample, and a count for every 512 of them.

    Args:
        mask: Whether each sample of the source is selected.

    >>> kept = Bitmap(np.arange(10) % 3 == 0)
    >>> kept.count, kept.select(np.arange(4)).tolist(), kept.rank(np.array([3, 4])).tolist()
    (4, [0, 3, 6, 9], [1, 2])
    """

    def __init__(self, mask: npt.NDArray[np.bool_]) -> None:
        self.size = len(mask)
        bits = np.packbits(mask, bitorder="little")
        lines = len(bits) // (LINE // 8) + 1  # the end of the samples is in a line, too
        self.bits = np.zeros(lines * (LINE // 8), np.uint8)
        self.bits[: len(bits)] = bits
        self._lines = self.bits.reshape(lines, LINE // 8)
        self._before = np.zeros(lines + 1, np.int64)
        for first in range(0, lines, 1 << 16):  # a few megabytes at a time
            part = slice(first, min(lines, first + (1 << 16)))
            counts = _ONES[self._lines[part]].sum(axis=1, dtype=np.int64)
            self._before[first + 1 : part.stop + 1] = counts
        np.cumsum(self._before, out=self._before)
        self.count = int(self._before[-1])

    def select(self, numbers: Indices) -> Indices:
        """Return the samples of the source with these numbers."""
        line = np.searchsorted(self._before, numbers, side="right") - 1
        left = numbers - self._before[line]
        ends = np.cumsum(_ONES[self._lines[line]], axis=1, dtype=np.int16)
        byte = (ends <= left[:, None]).sum(axis=1)
        at = np.arange(len(numbers)), byte
        bits = np.unpackbits(self._lines[line, byte][:, None], axis=1, bitorder="little")
        inside = left - ends[at] + _ONES[self._lines[line, byte]]  # of the byte's own ones
        bit = (np.cumsum(bits, axis=1) <= inside[:, None]).sum(axis=1)
        return np.asarray(line * LINE + byte * 8 + bit)

    def rank(self, samples: Indices) -> Indices:
        """Return how many samples are selected before each of these samples of the source."""
        line, byte = samples // LINE, samples % LINE // 8
        own = _ONES[self._lines[line]] * (np.arange(LINE // 8) < byte[:, None])
        below = ((1 << samples % 8) - 1).astype(np.uint8)
        last = _ONES[self._lines[line, byte] & below]
        return np.asarray(self._before[line] + own.sum(axis=1, dtype=np.int64) + last)

    def within(self, begin: int, end: int) -> Indices:
        """Return the selected samples in a range of the source, ascending."""
        bits = np.unpackbits(self.bits[begin // 8 : -(-end // 8)], bitorder="little")
        shift = begin % 8
        return np.flatnonzero(bits[shift : shift + end - begin]) + begin

    def begins(self) -> Indices:
        """Return the numbers of the samples that do not continue the one before them."""
        found = [np.zeros(0, np.int64)]
        for first in range(0, self.size, 1 << 24):
            own = self.within(first, min(self.size, first + (1 << 24)))
            before = self.within(max(0, first - 1), first)
            new = np.diff(own, prepend=before[0] if len(before) else -2) != 1
            found.append(np.flatnonzero(new) + int(self._before[first // LINE]))
        return np.concatenate(found)

    def facts(self) -> npt.NDArray[Any]:
        """Return the bits."""
        return self.bits


def kept_ranges(starts: Indices, stops: Indices, size: int) -> Kept:
    """Return ascending ranges as such, or as a bitmap if they would take more memory."""
    if not takes_bitmap(len(starts), size):
        return Ranges(starts, stops, size)
    edges = np.zeros(size + 1, np.int8)
    edges[starts], edges[stops] = 1, -1  # no range ends where another one begins
    return Bitmap(np.cumsum(edges[:-1], dtype=np.int8).astype(bool))


def takes_bitmap(ranges: int, size: int) -> bool:
    """Return whether a bitmap of ``size`` samples is smaller than this many ranges."""
    return ranges > MANY_RANGES and RANGE_BYTES * ranges > size // 7


class SelectedBlocks:
    """An order of selected samples, for storage that is read in blocks.

    A block of the storage has its selected samples as items; blocks without any are never
    read. In every epoch the blocks are permuted, laid end to end, and cut
    into lanes, as in `BlockLines`. A lane delivers its line in rounds of about ``block * window``
    rows: each ends where a block ends, so that every block is read once, except for the at most
    ``lanes - 1`` blocks that are cut between two lanes. The rows of a round are shuffled by key.

    Position p is row ``p // lanes`` of lane ``p % lanes``. Positions and samples are numbered
    among the selected samples; only `window_reads` returns samples of the source.

    Args:
        kept: The selected samples.
        seed: Seed of the shuffles.
        block: Samples of the source per block.
        window: Size of a lane's window, in blocks; it can have one block more.
        lanes: Independent readers.

    >>> kept = Bitmap(np.arange(40) % 3 == 0)
    >>> order = SelectedBlocks(kept, seed=42, block=10, window=1)
    >>> order.size, order.at(0, np.arange(5)).tolist(), order.rounds
    (14, [9, 12, 11, 8, 13], 2)
    """

    kind = "selected blocks"

    def __init__(self, kept: Kept, seed: int, block: int, window: int, lanes: int = 1) -> None:
        self.kept, self.seed = kept, seed
        self.block = whole_number("block", block, minimum=1, unit="sample")
        self.window = whole_number("window", window, minimum=1, unit="block")
        borders = np.append(np.arange(0, kept.size, block), kept.size)
        self._lines = BlockLines(np.diff(kept.rank(borders)), seed, lanes)
        self.size, self.lanes = kept.count, self._lines.lanes
        self._rows = self.block * self.window  # of a round, before it is moved to a block's end
        lane_rows = -(-self.size // lanes)
        self.rounds = -(-lane_rows // self._rows)
        self.window_samples = min(self._rows + self.block, lane_rows)

    def identity(self) -> dict[str, Any]:
        """Return kind, size, seed, geometry, and the digest of what the blocks hold."""
        geometry = {"block": self.block, "window": self.window, "lanes": self.lanes}
        return self._lines.identity() | {"order": self.kind} | geometry

    @property
    def held(self) -> Indices:
        """Selected samples of each block that has some."""
        return self._lines.counts[self._lines.counts > 0]

    @property
    def usual_rows(self) -> int:
        """Rows of a lane in a typical round."""
        return min(self._rows, max(1, self.size // self.lanes))

    # -- the order itself

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the samples at these positions of this epoch."""
        positions = check_positions(positions, self.size)
        return self._lines.at(epoch, self._shuffled(epoch, positions, backwards=False))

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the positions of these samples: the inverse of `at`."""
        return self._shuffled(epoch, self._lines.position_of(epoch, samples), backwards=True)

    def _shuffled(self, epoch: int, positions: Indices, *, backwards: bool) -> Indices:
        """Return where on the lines the samples at these positions are, or the inverse."""
        row, lane = np.divmod(positions, self.lanes)
        low = row // self._rows  # of its round, or of the one before: rounds end a little later
        k = np.where(row < self._begin(epoch, low, lane), low - 1, low)
        moved = row.copy()
        which = k * self.lanes + lane
        for each in np.unique(which).tolist():
            here, (begin, shuffle) = which == each, self._window(epoch, *divmod(each, self.lanes))
            inside = row[here] - begin
            moved[here] = begin + (shuffle.inverse(inside) if backwards else shuffle(inside))
        return np.asarray(moved * self.lanes + lane)

    def _window(self, epoch: int, k: int, lane: int) -> tuple[int, Permutation]:
        """Return the first row of a lane's window, and the shuffle of its rows."""
        begin, end = self._begin(epoch, np.array([k, k + 1]), np.array([lane, lane])).tolist()
        key = derive_key(derive_key(self.seed, "window", epoch), lane, k)
        return begin, permutation(end - begin, key)

    def _layout(self, epoch: int) -> LineLayout:
        return self._lines.layout(epoch)

    def _begin(self, epoch: int, k: Indices, lane: Indices) -> Indices:
        """Return the first row of each round of each lane: where a block begins, or the end."""
        of = self._layout(epoch)
        first = of.cut[lane]
        border = np.searchsorted(of.line, np.minimum(first + k * self._rows, of.line[-1]))
        end = np.minimum(np.where(k == 0, first, of.line[border]), of.cut[lane + 1])
        return np.asarray(end - first)

    # -- what a reader needs: one lane's window

    def round_of(self, epoch: int, position: int) -> int:
        """Return the first round that can have a position at or after this one."""
        return max(0, position // self.lanes // self._rows - 1)

    def round_start(self, epoch: int, k: int) -> int:
        """Return a position that is not after any position of round ``k`` or of later ones."""
        if k >= self.rounds:
            return self.size
        lanes = np.arange(self.lanes)
        return int(self._begin(epoch, np.full(self.lanes, k), lanes).min()) * self.lanes

    def round_stop(self, epoch: int, k: int) -> int:
        """Return a position after all positions of round ``k`` and of earlier ones."""
        lanes = np.arange(self.lanes)
        last = int(self._begin(epoch, np.full(self.lanes, k + 1), lanes).max())
        return min(self.size, last * self.lanes)

    def window_reads(self, epoch: int, k: int, column: int) -> Iterator[Span]:
        """Yield what a lane reads for a window: one span of each block.

        Spans are computed one by one: a window with few samples of each block has many of them.
        """
        of = self._layout(epoch)
        first = int(of.cut[column])
        begin, end = (
            first + self._begin(epoch, np.array([k, k + 1]), np.array([column, column]))
        ).tolist()
        entry = int(np.searchsorted(of.line, begin, side="right")) - 1
        while begin < end:
            block, line = int(of.blocks[entry]), int(of.line[entry])
            stop = min(end, int(of.line[entry + 1]))
            until = min((block + 1) * self.block, self.kept.size)
            samples = self.kept.within(block * self.block, until)[begin - line : stop - line]
            start, count = int(samples[0]), int(samples[-1] - samples[0]) + 1
            yield Span(start, count, None if count == len(samples) else samples - start)
            begin, entry = stop, entry + 1

    def window_positions(
        self, epoch: int, k: int, column: int, begin: int = 0, end: int | None = None
    ) -> Indices:
        """Return the position of each sample of the window, in the order of `window_reads`."""
        first, shuffle = self._window(epoch, k, column)
        asked = np.arange(begin, shuffle.length if end is None else end)
        return (first + shuffle.inverse(asked)) * self.lanes + column


class SelectedInOrder(SelectedBlocks):
    """Selected samples in storage order, read in blocks, with the identity of a `SequentialOrder`.

    Args:
        kept: The selected samples.
        seed: Not used by the order, but by what is keyed by it.
        block: Samples of the source per block.
        window: Size of a window, in blocks; it can have one block more.

    >>> kept = Bitmap(np.arange(40) % 3 == 0)
    >>> order = SelectedInOrder(kept, seed=42, block=10, window=1)
    >>> order.at(0, np.arange(5)).tolist(), [span.start for span in order.window_reads(0, 0, 0)]
    ([0, 1, 2, 3, 4], [0, 12, 21])
    """

    kind = SequentialOrder.kind

    def __init__(self, kept: Kept, seed: int, block: int, window: int) -> None:
        super().__init__(kept, seed, block, window)
        counts = self._lines.counts
        blocks = np.flatnonzero(counts)
        line = np.concatenate([[0], np.cumsum(counts[blocks])])
        self._in_order = LineLayout(blocks, line, line[[0, -1]])

    def identity(self) -> dict[str, Any]:
        """Return kind, size and seed: how it is read is not part of it."""
        return {"order": self.kind, "samples": self.size, "seed": self.seed}

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the positions themselves."""
        return check_positions(positions, self.size)

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the samples themselves."""
        return check_positions(samples, self.size)

    def _layout(self, epoch: int) -> LineLayout:
        return self._in_order

    def window_positions(
        self, epoch: int, k: int, column: int, begin: int = 0, end: int | None = None
    ) -> Indices:
        """Return the positions of samples ``begin`` to ``end`` of the round: they are the same."""
        ends = self._begin(epoch, np.array([k, k + 1]), np.zeros(2, np.int64)).tolist()
        return np.arange(ends[0] + begin, ends[1] if end is None else ends[0] + end)
