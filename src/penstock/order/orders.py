"""Orders: which sample comes at which place of which epoch."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.order.keys import derive_key
from penstock.order.permutation import LARGEST, Indices, Permutation, permutation


@runtime_checkable
class Order(Protocol):
    """A bijection of ``range(size)`` for every epoch, and nothing else: no state, no memory.

    Positions that are equal modulo ``lanes`` belong to one reader's share of the storage.
    """

    kind: str
    size: int
    seed: int
    lanes: int

    def at(self, epoch: int, positions: Indices) -> Indices:
        """The samples at these positions of this epoch."""
        ...

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """The positions of these samples: the inverse of `at`."""
        ...

    def identity(self) -> dict[str, int | str]:
        """What a state must agree on: kind, size, seed, and geometry where there is one."""
        ...


def check_size(size: int) -> int:
    """``size`` as an int, refused where no order can have it."""
    samples = whole_number("size", size, minimum=0, maximum=LARGEST)
    if samples == 0:
        raise PlanError("cannot order 0 samples: an empty dataset has no order")
    return samples


def check_seed(seed: int) -> int:
    """``seed`` as an int, refused where no key can have it."""
    return whole_number("seed", seed, minimum=0, maximum=(1 << 64) - 1)


def check_positions(positions: Indices, size: int) -> Indices:
    """``positions`` as int64, all in ``range(size)``."""
    positions = np.asarray(positions, np.int64)
    if positions.size and (positions.min() < 0 or positions.max() >= size):
        raise IndexError(f"position out of range({size})")
    return positions


class SequentialOrder:
    """Samples as they lie, the same in every epoch.

    >>> SequentialOrder(5).at(3, np.arange(5))
    array([0, 1, 2, 3, 4])
    """

    kind = "sequential"
    lanes = 1

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = check_size(size)
        self.seed = check_seed(
            seed
        )  # not of the order, but of what is keyed by it: augmentation, noise

    def at(self, epoch: int, positions: Indices) -> Indices:
        """The positions themselves."""
        return check_positions(positions, self.size)

    position_of = at

    def identity(self) -> dict[str, int | str]:
        """Kind, size and seed."""
        return {"order": self.kind, "samples": self.size, "seed": self.seed}


class ShuffledOrder:
    """A shuffle of all samples, another one in every epoch.

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
        """The samples at these positions of this epoch."""
        return self._shuffle(epoch)(np.asarray(positions, np.int64))

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """The positions of these samples."""
        return self._shuffle(epoch).inverse(np.asarray(samples, np.int64))

    def identity(self) -> dict[str, int | str]:
        """Kind, size and seed."""
        return {"order": self.kind, "samples": self.size, "seed": self.seed}
