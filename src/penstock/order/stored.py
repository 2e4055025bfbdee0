"""Samples as they lie in storage, cut into rounds of blocks that are read together."""

from __future__ import annotations

import numpy as np

from penstock.order.blocks import Span
from penstock.order.orders import SequentialOrder
from penstock.order.permutation import Indices


class StoredOrder(SequentialOrder):
    """A sequential order that is read in blocks, ``window`` of them at a time.

    The order is a `SequentialOrder` and has its identity: how it is read is not part of it.

    >>> order = StoredOrder(10, block=2, window=2)
    >>> order.rounds, order.window_reads(0, 2, 0)
    (3, [Span(start=8, count=2)])
    """

    def __init__(self, size: int, seed: int = 0, *, block: int, window: int) -> None:
        super().__init__(size, seed)
        self.block, self.window = block, window
        self.window_samples = min(block * window, self.size)
        self.rounds = -(-self.size // self.window_samples)

    def round_of(self, epoch: int, position: int) -> int:
        """The round a position is in."""
        return position // self.window_samples

    def round_start(self, epoch: int, k: int) -> int:
        """First position of round ``k``; of round ``rounds``: the end of the epoch."""
        return min(k * self.window_samples, self.size)

    def window_reads(self, epoch: int, k: int, column: int) -> list[Span]:
        """The blocks of the round."""
        begin, end = self.round_start(epoch, k), self.round_start(epoch, k + 1)
        return [Span(at, min(self.block, end - at)) for at in range(begin, end, self.block)]

    def window_positions(
        self, epoch: int, k: int, column: int, begin: int = 0, end: int | None = None
    ) -> Indices:
        """Positions of samples ``begin : end`` of the round: a sample's position is itself."""
        first, stop = self.round_start(epoch, k), self.round_start(epoch, k + 1)
        return np.arange(first + begin, stop if end is None else first + end)
