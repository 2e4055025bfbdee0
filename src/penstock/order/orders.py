"""Orders: which sample is at which position of which epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from penstock.arguments import LARGEST_SEED, whole_number
from penstock.errors import PlanError
from penstock.order.permutation import LARGEST, Indices, Permutation, derive_key, permutation

T = TypeVar("T")


@runtime_checkable
class Order(Protocol):
    """Which sample is at which position of which epoch; without state and without memory.

    Positions are ``range(size)``; those that are equal modulo ``lanes`` are read by one reader. An
    order with only these members is a bijection of ``range(size)`` in every epoch. An order that
    repeats or leaves out samples, or whose epochs differ in size, has some of the following
    members too, which are called through the functions of this module:

    - ``samples``: samples are in ``range(samples)`` (`samples_of`); by default ``size``;
    - ``places(epoch)``: positions of an epoch (`places_of`); by default ``size``;
    - ``positions_of(epoch, sample)``: all positions of one sample, ascending (`positions_of`);
    - ``passes(epoch, positions)``: how many times each sample occurred before this position, in all
      epochs (`passes_of`); by default the epoch. Augmentation is keyed by it;
    - ``at_with_passes(epoch, positions)``: the results of `at` and ``passes`` together;
    - ``at_epochs(epochs, positions)``: `at` with an epoch for each position (`at_epochs`).
    """

    kind: str
    size: int
    seed: int
    lanes: int

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the samples at these positions of this epoch.

        Args:
            epoch: The epoch, counted from 0.
            positions: Positions in ``range(size)``.
        """
        ...

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return a position of each of these samples: the inverse of `at`.

        Args:
            epoch: The epoch, counted from 0.
            samples: Indices in the dataset.
        """
        ...

    def identity(self) -> dict[str, Any]:
        """Return what a state must agree on: kind, samples, seed, and geometry if there is one.

        Values are strings, integers and lists of them. If an epoch has more positions than there
        are samples, ``"places"`` is the number of positions.
        """
        ...


def samples_of(order: Order) -> int:
    """Return the number of samples that an order is made for: its samples are in this range."""
    return int(getattr(order, "samples", order.size))


def places_of(order: Order, epoch: int) -> int:
    """Return the number of positions of an epoch."""
    places = getattr(order, "places", None)
    return order.size if places is None else int(places(epoch))


def positions_of(order: Order, epoch: int, sample: int) -> list[int]:
    """Return all positions of a sample in an epoch, ascending; none if it does not occur."""
    find = getattr(order, "positions_of", None)
    if find is not None:
        return [int(position) for position in find(epoch, sample)]
    found = order.position_of(epoch, np.array([sample]))
    if not 0 <= found[0] < places_of(order, epoch):
        return []
    return found.tolist() if order.at(epoch, found)[0] == sample else []


def passes_of(order: Order, epoch: int, positions: Indices) -> Indices | None:
    """Return the pass of the sample at each position; None if all are in pass ``epoch``."""
    passes = getattr(order, "passes", None)
    return None if passes is None else passes(epoch, positions)


def at_with_passes(order: Order, epoch: int, positions: Indices) -> tuple[Indices, Indices | None]:
    """Return ``order.at`` and `passes_of`, computed together where the order can do that."""
    both = getattr(order, "at_with_passes", None)
    if both is not None:
        found: tuple[Indices, Indices] = both(epoch, positions)
        return found
    return order.at(epoch, positions), passes_of(order, epoch, positions)


def at_epochs(order: Order, epochs: Indices, positions: Indices) -> Indices:
    """Return ``order.at`` of positions, each in its own epoch."""
    different = np.unique(epochs).tolist()
    if len(different) > 1 and hasattr(order, "at_epochs"):
        together: Indices = order.at_epochs(epochs, positions)
        return together
    found = np.empty_like(positions)
    for epoch in different:
        here = epochs == epoch
        found[here] = order.at(epoch, positions[here])
    return found


class Repeating(ABC):
    """Base class of orders in which samples repeat, defined by their passes and their inverse."""

    kind: str
    size: int
    seed: int
    lanes: int

    @abstractmethod
    def at_with_passes(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        """Return the samples at these positions, and how often each occurred before."""

    @abstractmethod
    def positions_of(self, epoch: int, sample: int) -> Indices | list[int]:
        """Return all positions of a sample in an epoch, ascending."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return what a state must agree on."""

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the samples at these positions of this epoch."""
        return self.at_with_passes(epoch, positions)[0]

    def passes(self, epoch: int, positions: Indices) -> Indices:
        """Return how often each sample occurred before."""
        return self.at_with_passes(epoch, positions)[1]

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the first position of each sample in this epoch."""
        found = [positions_of(self, epoch, sample) for sample in np.ravel(samples).tolist()]
        if not all(found):
            raise IndexError(f"some of these samples do not occur in epoch {epoch}")
        return np.array([positions[0] for positions in found], np.int64)


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

    def identity(self) -> dict[str, Any]:
        """Return kind, size and seed."""
        return {"order": self.kind, "samples": self.size, "seed": self.seed}


class ShuffledOrder:
    """A shuffle of all samples, a different one in every epoch.

    Args:
        size: Samples of the order.
        seed: Seed of the shuffles, in [0, 2**64).

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

    def at_epochs(self, epochs: Indices, positions: Indices) -> Indices:
        """Return the samples at these positions, each in its own epoch.

        Args:
            epochs: The epoch of each position.
            positions: Positions in ``range(size)``.
        """
        # a key for every index, no loop: one call may span many epochs of a small order
        keys = np.asarray(derive_key(self.seed, "order", epochs))
        return Permutation(self.size, keys)(np.asarray(positions, np.int64))

    def identity(self) -> dict[str, Any]:
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
        key: Key of the shuffle.
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


# -- windows of positions, each planned by itself


class EqualWindows:
    """Positions in windows whose sizes differ by at most one unit: none is tiny.

    Windows are whole units; a rest of less than one unit is added to the last window.

    Args:
        size: Positions of the order.
        window: The largest window, in positions.
        unit: Positions of a unit.

    >>> windows = EqualWindows(10, window=4)
    >>> [windows.start(w) for w in range(windows.count + 1)]
    [0, 4, 7, 10]
    """

    def __init__(self, size: int, window: int, unit: int = 1) -> None:
        self.unit = whole_number("group", unit, minimum=1, unit="batch")
        window = whole_number("window", window, minimum=1, unit="sample")
        if size < unit:
            raise PlanError(
                f"{size} samples are less than one group of {unit}: use a smaller group"
            )
        self.size, units = size, size // unit
        self.count = -(-units // max(1, window // unit))
        self.each, self.more = divmod(units, self.count)

    def start(self, w: int) -> int:
        """Return the first position of window ``w``; for ``w = count``, the end."""
        return self.size if w >= self.count else (w * self.each + min(w, self.more)) * self.unit

    def positions(self, w: int) -> Indices:
        """Return the positions of window ``w``."""
        return np.arange(self.start(w), self.start(w + 1))

    def of(self, position: int) -> int:
        """Return the window of a position."""
        at, long = position // self.unit, self.more * (self.each + 1)
        w = at // (self.each + 1) if at < long else self.more + (at - long) // self.each
        return min(w, self.count - 1)

    def split(self, positions: Indices) -> Iterator[tuple[int, Indices]]:
        """Yield each window that holds some of the positions, and the indices of those."""
        at, long = positions // self.unit, self.more * (self.each + 1)
        window = np.where(at < long, at // (self.each + 1), self.more + (at - long) // self.each)
        window = np.minimum(window, self.count - 1)
        for w in np.unique(window).tolist():
            yield w, np.flatnonzero(window == w)


class Recent(Generic[T]):
    """A pure function of integers that keeps its last few results; a copy of it keeps none.

    Args:
        make: The function.
        keep: Results to keep.

    >>> square = Recent(lambda x: x * x)
    >>> square(3), square(3)
    (9, 9)
    """

    def __init__(self, make: Callable[..., T], keep: int = 3) -> None:
        self._make, self._keep, self._kept = make, keep, dict[tuple[int, ...], T]()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": {}}

    def __call__(self, *key: int) -> T:
        """Return the function's result for these integers."""
        found = self._kept.get(key)
        if found is None:
            found = self._make(*key)
            # a new dict each time: another thread may be reading the old one
            self._kept = {**dict(list(self._kept.items())[1 - self._keep :]), key: found}
        return found
