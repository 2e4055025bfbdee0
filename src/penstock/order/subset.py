"""Subsets of samples, and orders over storage blocks that hold different numbers of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.arguments import array_of, whole_number
from penstock.errors import PlanError
from penstock.order.keys import derive_key, digest_of
from penstock.order.orders import Order, check_positions, check_seed, positions_of
from penstock.order.permutation import Indices, Permutation
from penstock.order.windows import Recent

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

# of each byte: its bits that are set, and the place of the k-th one
_POPCOUNT: Final[Bytes] = np.array([b.bit_count() for b in range(256)], np.uint8)
_SELECT: Final[Bytes] = np.array(
    [([i for i in range(8) if b >> i & 1] + [0] * 8)[:8] for b in range(256)], np.uint8
)


class Bitmap:
    """Which samples are kept: one bit per sample, and a count for every 512 of them.

    ``select(k)`` is the k-th kept sample, ``rank(s)`` the number of kept ones before s. Both look
    among lines of 8 words, then among the words of a line, then among the bytes of a word.

    Args:
        kept: A mask, or the indices of kept samples in any order.
        size: Number of samples; needed with indices.

    >>> bitmap = Bitmap([True, False, True, True])
    >>> bitmap.select(np.arange(3)), bitmap.rank(np.array([3]))
    (array([0, 2, 3]), array([2]))
    """

    def __init__(self, kept: npt.ArrayLike, size: int | None = None) -> None:
        mask = array_of("indices_or_mask", kept)
        if mask.dtype != np.bool_:
            if size is None or mask.dtype.kind not in "iu" or mask.ndim != 1:
                raise PlanError("pass a mask, or indices together with the number of samples")
            if mask.size and (int(mask.min()) < 0 or int(mask.max()) >= size):
                raise PlanError(f"indices must be in [0, {size}), got {mask.min()} to {mask.max()}")
            indices, mask = mask.astype(np.int64), np.zeros(size, np.bool_)
            mask[indices] = True
        self.size = len(mask)
        bits = np.packbits(mask, bitorder="little")
        lines = len(bits) // 64 + 1  # the end of the samples has a line, too
        self.bits: Bytes = np.concatenate([bits, np.zeros(lines * 64 - len(bits), np.uint8)])
        self._words: Words = self.bits.view(np.uint64).reshape(lines, 8)  # only counted
        self._bytes: Bytes = self.bits.reshape(lines * 8, 8)
        per_line = _ones(self._words).sum(1, dtype=np.int64)
        self._before: Indices = np.concatenate([[0], np.cumsum(per_line)])
        self.count = int(self._before[-1])

    def __contains__(self, sample: int) -> bool:
        return bool(self.bits[sample >> 3] >> (sample & 7) & 1)

    def rank(self, samples: Indices) -> Indices:
        """Return the number of kept samples before each sample."""
        samples = np.asarray(samples).astype(np.int64)
        line, word, byte = samples >> 9, samples >> 6 & 7, samples >> 3 & 7
        words = _ones(self._words[line]) * (np.arange(8) < word[..., None])
        octets = self._bytes[samples >> 6]
        below = _POPCOUNT[octets] * (np.arange(8) < byte[..., None])
        last = np.take_along_axis(octets, byte[..., None], -1)[..., 0]
        inside = _POPCOUNT[last & ((1 << (samples & 7)) - 1).astype(np.uint8)]
        counts = words.sum(-1, dtype=np.int64) + below.sum(-1, dtype=np.int64)
        found: Indices = self._before[line] + counts + inside
        return found

    def select(self, ranks: Indices) -> Indices:
        """Return the kept samples with these ranks: the inverse of `rank`."""
        ranks = np.asarray(ranks).astype(np.int64)
        if ranks.size and (ranks.min() < 0 or ranks.max() >= self.count):
            raise IndexError(f"rank out of range({self.count})")
        line = np.searchsorted(self._before, ranks, side="right") - 1
        word, left = _find(_ones(self._words[line]), ranks - self._before[line])
        word += line * 8
        byte, left = _find(_POPCOUNT[self._bytes[word]], left)
        return word * 64 + byte * 8 + _SELECT[self._bytes[word, byte], left]

    def block_counts(self, block: int) -> Indices:
        """Return the number of kept samples in each storage block."""
        borders = np.minimum(np.arange(-(-self.size // block) + 1) * block, self.size)
        return np.diff(self.rank(borders))


def _ones(words: Words) -> Bytes:
    """Return the number of set bits of each word; numpy has this from 2.0 on."""
    m = [np.uint64(int(digits * 8, 16)) for digits in ("55", "33", "0f", "01")]
    pairs = words - (words >> np.uint64(1) & m[0])
    fours = (pairs & m[1]) + (pairs >> np.uint64(2) & m[1])
    eights = fours + (fours >> np.uint64(4)) & m[2]
    counts: Bytes = (eights * m[3] >> np.uint64(56)).astype(np.uint8)
    return counts


def _find(counts: Bytes, rank: Indices) -> tuple[Indices, Indices]:
    """Return which entry of the last axis has the rank-th bit, and its rank in that entry."""
    ends = np.cumsum(counts, axis=-1, dtype=np.int64)
    at = (ends <= rank[..., None]).sum(-1)
    return at, rank - np.take_along_axis(ends - counts, at[..., None], -1)[..., 0]


class SubsetOrder:
    """An order over the kept samples of a bitmap, as an order of all samples.

    With a `RaggedBlockOrder` of ``bitmap.block_counts(block)``, each storage block that holds a
    kept sample is read once.

    Args:
        bitmap: The kept samples.
        order: An order of ``bitmap.count`` samples.

    >>> from penstock.order.orders import ShuffledOrder
    >>> order = SubsetOrder(Bitmap([1, 4, 5], size=9), ShuffledOrder(3, seed=42))
    >>> sorted(order.at(0, np.arange(3)).tolist())
    [1, 4, 5]
    """

    def __init__(self, bitmap: Bitmap, order: Order) -> None:
        if order.size != bitmap.count:
            raise PlanError(f"an order of {order.size} samples over {bitmap.count} kept ones")
        self.bitmap, self.order = bitmap, order
        self.kind, self.size, self.seed, self.lanes = (
            order.kind,
            order.size,
            order.seed,
            order.lanes,
        )
        self.samples = bitmap.size

    def identity(self) -> dict[str, Any]:
        """Return the identity of the inner order, and the digest of the bitmap."""
        return self.order.identity() | {"kept": digest_of(self.bitmap.bits), "of": self.samples}

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the samples at these positions of this epoch."""
        return self.bitmap.select(self.order.at(epoch, positions))

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the positions of these samples: the inverse of `at`."""
        return self.order.position_of(epoch, self._ranks(samples))

    def positions_of(self, epoch: int, sample: int) -> list[int]:
        """Return the positions of a sample in an epoch: none if it is not kept."""
        if sample not in self.bitmap:
            return []
        return positions_of(self.order, epoch, int(self.bitmap.rank(np.array([sample]))[0]))

    def _ranks(self, samples: Indices) -> Indices:
        ranks = self.bitmap.rank(samples)
        if not np.array_equal(
            self.bitmap.select(np.minimum(ranks, self.bitmap.count - 1)), samples
        ):
            raise IndexError("some of these samples are not kept")
        return ranks


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
