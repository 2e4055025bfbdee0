"""Orders: which sample is at which position of which epoch."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from penstock.arguments import LARGEST_SEED, whole_number
from penstock.errors import PlanError
from penstock.order.keys import derive_key
from penstock.order.permutation import LARGEST, Indices, Permutation, permutation


@runtime_checkable
class Order(Protocol):
    """A bijection of ``range(size)`` for every epoch; without state and without memory.

    Positions that are equal modulo ``lanes`` are read by one reader.
    """

    kind: str
    size: int
    seed: int
    lanes: int

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the samples at these positions of this epoch."""
        ...

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the positions of these samples: the inverse of `at`."""
        ...

    def identity(self) -> dict[str, int | str]:
        """Return what a state must agree on: kind, size, seed, and geometry if there is one."""
        ...


def check_size(size: int) -> int:
    """Return ``size`` as an int; raise a `PlanError` if no order can have it."""
    samples = whole_number("size", size, minimum=0, maximum=LARGEST)
    if samples == 0:
        raise PlanError("cannot order 0 samples: an empty dataset has no order")
    return samples


def check_seed(seed: int) -> int:
    """Return ``seed`` as an int; raise a `PlanError` if it does not fit into 64 bits."""
    return whole_number("seed", seed, minimum=0, maximum=LARGEST_SEED)


def check_positions(positions: Indices, size: int) -> Indices:
    """Return ``positions`` as int64; raise an IndexError unless all are in ``range(size)``."""
    positions = np.asarray(positions, np.int64)
    if positions.size and (positions.min() < 0 or positions.max() >= size):
        raise IndexError(f"position out of range({size})")
    return positions


class SequentialOrder:
    """Samples in the order of storage, the same in every epoch.

    Args:
        size: Samples of the order.
        seed: Not used by the order, but by what is keyed by it: augmentation, noise.

    >>> SequentialOrder(5).at(3, np.arange(5))
    array([0, 1, 2, 3, 4])
    """

    kind = "sequential"
    lanes = 1

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = check_size(size)
        self.seed = check_seed(seed)

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the positions themselves."""
        return check_positions(positions, self.size)

    position_of = at

    def identity(self) -> dict[str, int | str]:
        """Return kind, size and seed."""
        return {"order": self.kind, "samples": self.size, "seed": self.seed}


class ShuffledOrder:
    """A shuffle of all samples, a different one in every epoch.

    Args:
        size: Samples of the order.
        seed: Of the shuffles, in [0, 2**64).

    >>> order = ShuffledOrder(10**12, seed=42)
    >>> order.position_of(3, order.at(3, np.array([5, 10**11])))
    array([           5, 100000000000])
    """

    kind = "shuffled"
    lanes = 1

    def __init__(self, size: int, seed: int) -> None:
        self.size = check_size(size)
        self.seed = check_seed(seed)

    def _shuffle(self, epoch: int) -> Permutation:
        return permutation(self.size, derive_key(self.seed, "order", epoch))

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the samples at these positions of this epoch."""
        return self._shuffle(epoch)(np.asarray(positions, np.int64))

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the positions of these samples."""
        return self._shuffle(epoch).inverse(np.asarray(samples, np.int64))

    def identity(self) -> dict[str, int | str]:
        """Return kind, size and seed."""
        return {"order": self.kind, "samples": self.size, "seed": self.seed}


def tiles(total: int, chunk: int, key: int, align: int = 1) -> list[tuple[int, int]]:
    """Return exactly ``ceil(total / chunk)`` spans that cover ``range(total)`` once, shuffled.

    Their lengths differ by at most one unit of ``align``, so that with an equal number of batches
    per span every timestep has the same weight. Which spans are longer depends on the key. Starts
    are multiples of ``align`` if ``chunk`` is one.

    Args:
        total: Timesteps to cover.
        chunk: The longest span, in timesteps.
        key: Of the shuffle.
        align: Timesteps per unit, such as the rows of a stored chunk.

    >>> tiles(10, 4, key=3)
    [(6, 10), (3, 6), (0, 3)]
    """
    if min(total, chunk, align) < 1:
        raise PlanError(f"total, chunk and align must be at least 1, got {(total, chunk, align)}")
    count = -(-total // chunk)
    unit = align if chunk % align == 0 else 1
    units, shift = -(-total // unit), key % count
    borders = [min((i * units + shift) // count * unit, total) for i in range(count)]
    spans = list(zip(borders, [*borders[1:], total], strict=True))
    return [spans[i] for i in Permutation(count, key)(np.arange(count)).tolist()]
