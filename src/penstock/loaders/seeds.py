"""Orders that follow a seed, which may become rank 0's when the ranks appear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from penstock.order import Order, Topology
from penstock.seeds import Seed as Seed
from penstock.seeds import resolve_seed as resolve_seed


class HeldOrder:
    """The order a loader has now, for the seed and the number of samples in use.

    A loader's course asks this and not the loader, which would be a reference cycle: workers of a
    loader in a cycle are left to the garbage collector, and torch then waits five seconds for each.

    Args:
        order: An order that neither another seed nor another size can replace.
    """

    def __init__(self, order: Order) -> None:
        self.order, self.seed = order, Seed(order.seed)
        self._make: Callable[[int, int], Order] | None = None

    @classmethod
    def following(cls, seed: Seed, size: int, make: Callable[[int, int], Order]) -> Self:
        """Return the order that ``make(size, seed)`` gives, also for what replaces either.

        Args:
            seed: Of the order.
            size: Samples of the order.
            make: Returns the order for a size and a seed.
        """
        held = cls(make(size, seed.value))
        held.seed, held._make = seed, make
        return held

    @property
    def resizes(self) -> bool:
        """Whether the order exists for every number of samples."""
        return self._make is not None

    def resize(self, size: int) -> None:
        """Use the order of another number of samples; only where it `resizes`."""
        assert self._make is not None
        self.order = self._make(size, self.order.seed)

    def __call__(self, topology: Topology) -> Order:
        """Return the order for these ranks, the same on all of them."""
        seed = self.seed.for_ranks(topology.world)
        if self._make is not None and seed != self.order.seed:
            self.order = self._make(self.order.size, seed)
        return self.order
