"""Orders that deliver samples as often as their weights require, by systematic resampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.arguments import array_of, whole_number
from penstock.errors import PlanError
from penstock.fingerprints import digest_of
from penstock.order.block_rounds import BlockLines, BlockRounds
from penstock.order.orders import Recent, Repeating, check_positions, check_seed
from penstock.order.permutation import Indices, Permutation, derive_key, permutation

MOST_PLACES: Final = 1 << 31  # more would overflow 64 bits in `points`
COPY: Final = 1 << 40  # a pass is its epoch plus this for each earlier copy in the same epoch


def fixed_point(weights: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Return weights as integers whose sum is below 2**62.

    Integers stay as they are. Floats are scaled by a power of two, which is exact, and rounded: a
    weight below about ``max / 2**(62 - log2(N))`` becomes 0.
    """
    values = array_of("weights", weights)
    if values.ndim != 1 or not values.size or values.dtype.kind not in "biuf":
        raise PlanError(f"weights must be one number per sample, got an array of {values.shape}")
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)
        if not np.isfinite(wide).all() or wide.min() < 0:
            raise PlanError("weights must be finite and not negative")
        bits = min(52, 61 - wide.size.bit_length())
        scaled = np.rint(np.ldexp(wide, bits - int(np.frexp(wide.max())[1])))
        units: npt.NDArray[np.uint64] = scaled.astype(np.uint64)
    else:
        if values.min() < 0:
            raise PlanError("weights must be finite and not negative")
        units = values.astype(np.uint64)
        if float(units.max()) * units.size >= 2.0**62 and sum(units.tolist()) >= 1 << 62:
            raise PlanError("integer weights must sum to less than 2**62: divide them")
    if not units.any():
        raise PlanError("all weights are 0: at least one sample needs a weight")
    return units


class WeightedOrder(Repeating):
    """An order with ``places * weight / sum of weights`` copies of each sample, rounded up or down.

    Points ``(t * total + phase) / places`` for t in range(places) lie evenly on the line of
    cumulative weights; a sample occurs once per point on its part of the line. The phase and
    the permutation of the points are keyed by the epoch. Equal weights, with as many places as
    samples, give the `ShuffledOrder` of the same seed, sample by sample.

    All in integers, so equal on every platform: ``floor(point) = t * a + (t * b + phase) //
    places`` with ``a, b = divmod(total, places)``, which stays below 2**63. Memory is 9 bytes per
    sample.

    Neighbours exclude each other: of samples that are closer on the line than one step, only one
    occurs in an epoch. That is good for coverage, and bad for batches that need similar samples
    together.

    Args:
        weights: One number per sample, not negative; only their ratios matter.
        places: Samples delivered per epoch.
        seed: Seed of phase and permutation.

    >>> order = WeightedOrder([1, 2, 3, 4], places=10, seed=42)
    >>> np.bincount(order.at(0, np.arange(10)))
    array([1, 2, 3, 4])
    """

    kind = "weighted"
    lanes = 1

    def __init__(self, weights: npt.ArrayLike, places: int, seed: int) -> None:
        self.size = whole_number("places", places, minimum=1, maximum=MOST_PLACES, unit="sample")
        self.seed = check_seed(seed)
        units = fixed_point(weights)
        self.digest = digest_of(units)
        self.ends: Indices = np.cumsum(units, dtype=np.uint64).astype(np.int64)
        self.total, self.samples = int(self.ends[-1]), len(self.ends)
        # a table of where to begin a search: about 4 samples for each of its entries
        self._shift = max(0, self.total.bit_length() - max(1, self.samples.bit_length() - 2))
        edges = np.arange((self.total >> self._shift) + 2) << self._shift
        small = np.uint32 if self.samples < 1 << 32 else np.int64
        self._guide = np.searchsorted(self.ends, edges, side="right").astype(small)

    def identity(self) -> dict[str, Any]:
        """Return kind, sizes, seed, and the digest of the weights."""
        return {
            "order": self.kind,
            "samples": self.samples,
            "seed": self.seed,
            "places": self.size,
            "weights": self.digest,
        }

    def positions_of(self, epoch: int, sample: int) -> Indices:
        """Return all positions of a sample in an epoch, ascending."""
        return np.sort(self._shuffle(epoch).inverse(self.copies_of(epoch, sample)))

    def at_with_passes(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        """Return the samples at these positions, and their passes.

        The pass is the epoch itself for the first copy of a sample in the epoch.
        """
        return self.of_copies(epoch, self._copies_at(epoch, positions))

    def of_copies(self, epoch: int, t: Indices) -> tuple[Indices, Indices]:
        """Return the sample of each copy, and its pass."""
        samples, passes = self.sample_of_copy(epoch, t), np.full_like(t, epoch)
        begin = np.where(samples > 0, self.ends[samples - 1], 0)
        again = np.flatnonzero((t > 0) & (self.points(epoch, t - 1) >= begin))
        passes[again] += COPY * (t[again] - self.points_before(epoch, begin[again]))
        return samples, passes

    # -- points on the line of cumulative weights

    def phase(self, epoch: int) -> int:
        """Return the shift of an epoch's points."""
        return derive_key(self.seed, "phase", epoch) % self.total

    def points(self, epoch: int, t: Indices) -> Indices:
        """Return the points with these numbers, rounded down."""
        a, b = divmod(self.total, self.size)
        found: Indices = t * a + (t * b + self.phase(epoch)) // self.size
        return found

    def sample_of_copy(self, epoch: int, t: Indices) -> Indices:
        """Return the sample of each point; the copies of a sample have consecutive points."""
        points = self.points(epoch, t)
        entry = points >> self._shift
        low: Indices = self._guide[entry].astype(np.int64)
        high: Indices = self._guide[entry + 1].astype(np.int64)
        while (low < high).any():
            middle = (low + high) >> 1
            after = self.ends[middle] <= points
            low, high = np.where(after, middle + 1, low), np.where(after, high, middle)
        return low

    def points_before(self, epoch: int, mark: Indices) -> Indices:
        """Return the exact number of points before each mark on the line."""
        guess = np.floor(mark.astype(np.float64) / self.total * self.size).astype(np.int64) - 2
        t: Indices = np.clip(guess, 0, self.size)
        for _ in range(5):  # the guess is low by at most 4
            t += (t < self.size) & (self.points(epoch, np.minimum(t, self.size - 1)) < mark)
        return t

    def copies(self, epoch: int, samples: Indices) -> tuple[Indices, Indices]:
        """Return the first copy of each sample, and the number of its copies in this epoch."""
        samples = check_positions(samples, self.samples)
        begin = np.where(samples > 0, self.ends[samples - 1], 0)
        first = self.points_before(epoch, begin)
        return first, self.points_before(epoch, self.ends[samples]) - first

    def copies_of(self, epoch: int, sample: int) -> Indices:
        """Return the numbers of a sample's points in this epoch."""
        first, count = (int(v[0]) for v in self.copies(epoch, np.array([sample])))
        return np.arange(first, first + count)

    def _shuffle(self, epoch: int) -> Permutation:
        return permutation(self.size, derive_key(self.seed, "order", epoch))

    def _copies_at(self, epoch: int, positions: Indices) -> Indices:
        return self._shuffle(epoch)(np.asarray(positions, np.int64))


class Reweighted(Repeating):
    """Weighted orders in sequence: weights that change during training.

    New weights take effect at the start of an epoch. A state is ``(epoch, position)``, and lists
    the digests of the weights: ``[[first epoch, digest], ...]``. To continue, the last weights are
    needed; for queries about past epochs also theirs, which may be unknown.

    Args:
        versions: First epoch and order of each; or its digest, where the weights are not known.

    >>> old, new = WeightedOrder([1, 1], 4, seed=7), WeightedOrder([0, 1], 4, seed=7)
    >>> order = Reweighted([(0, old), (3, new)])
    >>> sorted(order.at(2, np.arange(4)).tolist()), sorted(order.at(3, np.arange(4)).tolist())
    ([0, 0, 1, 1], [1, 1, 1, 1])
    """

    kind = "weighted"
    lanes = 1

    def __init__(self, versions: Sequence[tuple[int, WeightedOrder | str]]) -> None:
        self.first, self.orders = [epoch for epoch, _ in versions], [o for _, o in versions]
        last = self.orders[-1]
        if self.first[0] != 0 or sorted(set(self.first)) != self.first:
            raise PlanError(f"first epochs of weights must be 0, then ascend, got {self.first!r}")
        known = [o for o in self.orders if not isinstance(o, str)]
        if isinstance(last, str) or len({(o.size, o.samples, o.seed) for o in known}) > 1:
            raise PlanError("all weights need the same number of samples, places, and seed")
        self.last, self.size, self.samples, self.seed = last, last.size, last.samples, last.seed

    def identity(self) -> dict[str, Any]:
        """Return the identity of the last order, with the digests of all weights."""
        names = [o if isinstance(o, str) else o.digest for o in self.orders]
        versions = [[epoch, name] for epoch, name in zip(self.first, names, strict=True)]
        return self.last.identity() | {"weights": versions}

    def version(self, epoch: int) -> WeightedOrder:
        """Return the order of an epoch."""
        found = self.orders[int(np.searchsorted(self.first, epoch, side="right")) - 1]
        if isinstance(found, str):
            raise PlanError(
                f"the weights of epoch {epoch} (digest {found}) are not known to this loader: "
                "it was resumed with later ones"
            )
        return found

    def positions_of(self, epoch: int, sample: int) -> Indices:
        """Return all positions of a sample in an epoch, ascending."""
        return self.version(epoch).positions_of(epoch, sample)

    def at_with_passes(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        """Return the samples at these positions, and their passes."""
        return self.version(epoch).at_with_passes(epoch, positions)


class WeightedBlocks(BlockRounds):
    """Weighted samples, for storage that is read in blocks.

    In every epoch, a block has an item for each occurrence of its samples: all copies of a block's
    samples are consecutive on its lane's line, and are shuffled in the rounds of that line. So
    each block is read once in an epoch, or once for each round that it reaches into.

    Args:
        weighted: How often each sample occurs.
        block: Samples per block.
        window: Size of a lane's window, in blocks.
        lanes: Independent readers.

    >>> order = Reweighted([(0, WeightedOrder([1, 2, 3, 4], 10, seed=42))])
    >>> np.bincount(WeightedBlocks(order, block=2, window=1).at(0, np.arange(10)))
    array([1, 2, 3, 4])
    """

    kind = "weighted blocks"

    def __init__(self, weighted: Reweighted, block: int, window: int, lanes: int = 1) -> None:
        super().__init__(weighted.size, block, window, lanes, [0])
        self.weighted, self.samples, self.seed = weighted, weighted.samples, weighted.seed
        self._lines = Recent(self._lay_out)

    def identity(self) -> dict[str, Any]:
        """Return the identity of the weighted order, and the geometry."""
        geometry = {"block": self.block, "window": self.window, "lanes": self.lanes}
        return self.weighted.identity() | {"order": self.kind} | geometry

    def positions_of(self, epoch: int, sample: int) -> Indices:
        """Return all positions of a sample in an epoch, ascending."""
        copies = self.weighted.version(epoch).copies_of(epoch, sample)
        row, lane = np.divmod(self._lines(epoch).position_of(epoch, copies), self.lanes)
        for i, (r, each) in enumerate(zip(row.tolist(), lane.tolist(), strict=True)):
            k = r // self.window_samples
            begin = self.rows_of(k, each)[0]
            row[i] = begin + self._shuffle(epoch, k, each).inverse(r - begin)
        return np.sort(row * self.lanes + lane)

    def _rows(self, epoch: int, k: int, lane: int) -> tuple[Indices, Indices]:
        begin, end = self.rows_of(k, lane)
        if begin == end:  # fewer places than lanes
            return np.empty(0, np.int64), np.empty(0, np.int64)
        rows = begin + self._shuffle(epoch, k, lane)(np.arange(end - begin))
        copies = self._lines(epoch).at(epoch, rows * self.lanes + lane)
        return self.weighted.version(epoch).of_copies(epoch, copies)

    def _shuffle(self, epoch: int, k: int, lane: int) -> Permutation:
        begin, end = self.rows_of(k, lane)
        key = derive_key(derive_key(self.seed, "window", epoch), lane, k)
        return permutation(end - begin, key)

    def _lay_out(self, epoch: int) -> BlockLines:
        order, samples = self.weighted.version(epoch), self.samples
        last = np.minimum(np.arange(self.block, samples + self.block, self.block), samples) - 1
        counts = np.diff(order.points_before(epoch, order.ends[last]), prepend=0)
        return BlockLines(counts, self.seed, self.lanes)
