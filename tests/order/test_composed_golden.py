"""STATE-BREAKING: these values are frozen, as those of test_golden.py."""

import numpy as np

from penstock.order import ShuffledOrder
from penstock.order.length_batches import LengthBatches
from penstock.order.mixed_blocks import MixedBlocks
from penstock.order.mixture import MixtureOrder
from penstock.order.packing import FlatTokens
from penstock.order.weighted import Reweighted, WeightedBlocks, WeightedOrder
from tests.order.composed import one


def test_composed_orders_are_frozen():
    members = [ShuffledOrder(50, 1), ShuffledOrder(20, 2)]
    mixture = MixtureOrder(members, [(0, [7, 3]), (30, [1, 1])], seed=42, lanes=2, until=60)
    assert mixture.at(1, np.arange(10)).tolist() == [13, 57, 60, 43, 65, 12, 34, 63, 67, 47]
    for weights in ([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]):
        weighted = WeightedOrder(weights, 10, 42)
        assert weighted.at(1, np.arange(10)).tolist() == [2, 3, 3, 3, 0, 3, 2, 2, 1, 1]
    mixed = MixedBlocks([50, 20], [(0, [7, 3]), (30, [1, 1])], 42, 4, 3, lanes=2, until=60)
    assert mixed.at(1, np.arange(10)).tolist() == [2, 64, 60, 27, 59, 10, 23, 63, 50, 26]
    blocks = WeightedBlocks(Reweighted([(0, WeightedOrder([1, 2, 3, 4], 20, 42))]), 2, 2, 2)
    assert blocks.at(1, np.arange(10)).tolist() == [0, 2, 1, 3, 1, 3, 0, 2, 2, 3]
    lengths = np.arange(20) % 7 + 1
    batches = LengthBatches(ShuffledOrder(20, 42), lengths, 10, budget=14, group=2)
    assert batches.batches(1, 0, 5) == [(0, 2), (2, 4), (4, 6), (6, 10), (10, 12)]
    assert one(batches, 1)[:8].tolist() == [19, 12, 6, 5, 11, 17, 9, 16]
    pieces = FlatTokens([5, 9, 4], 8, 42).pieces(1, np.array([2]))  # over the end of the ring
    assert [column.tolist() for column in pieces] == [[0], [0], [0], [1], [3]]
