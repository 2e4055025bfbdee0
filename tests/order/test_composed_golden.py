"""STATE-BREAKING: these values are frozen, as those of test_golden.py."""

import numpy as np

from penstock.order import BlockOrder, ShuffledOrder, derive_key
from penstock.order.length_batches import LaneBatches, LengthBatches
from penstock.order.mixed_blocks import MixedBlocks
from penstock.order.mixture import MixtureOrder
from penstock.order.orders import EqualWindows
from penstock.order.packing import FlatTokens, WholeDocuments
from penstock.order.permutation import Permutation
from penstock.order.subset import Bitmap, SelectedBlocks
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
    # documents of a window of a shuffle, cut, and sequence 0 of their shuffle
    documents = ShuffledOrder(20, 42).at(1, EqualWindows(20, 10).positions(0))
    cut = FlatTokens(lengths[documents], 16)
    first = Permutation(cut.size, derive_key(42, "sequences", 1, 0))[0]
    pieces = cut.pieces(1, np.array([first]))
    found = zip(documents[pieces.document].tolist(), *map(list, pieces[3:]), strict=True)
    assert list(found) == [(8, 0, 2), (19, 0, 6), (12, 0, 6), (11, 0, 2)]
    whole = WholeDocuments(lengths, 16, window=10, seed=42)
    assert whole.pieces(1, np.arange(whole.size)).document.tolist() == [
        6,
        5,
        9,
        4,
        3,
        2,
        8,
        1,
        0,
        7,
        13,
        19,
        16,
        12,
        11,
        18,
        10,
        17,
        15,
        14,
    ]
    mask = np.ones(36, bool)
    mask[[4, 5, 6, 7, 19, 33, 34, 35]] = False  # blocks of 4, 0, 4, 4, 3, 4, 4, 4 and 1
    assert one(SelectedBlocks(Bitmap(mask), 42, 4, 2, 2), 1).tolist() == [
        23,
        13,
        25,
        19,
        4,
        2,
        24,
        3,
        26,
        0,
        7,
        14,
        5,
        20,
        27,
        21,
        6,
        1,
        18,
        22,
        12,
        11,
        15,
        10,
        17,
        8,
        16,
        9,
    ]
    lanes = LaneBatches(BlockOrder(20, 42, 3, 2, 2), lengths, 10, budget=14)
    assert one(lanes, 1).tolist() == [
        5,
        3,
        7,
        0,
        13,
        6,
        2,
        1,
        12,
        14,
        4,
        11,
        19,
        17,
        9,
        16,
        8,
        18,
        10,
        15,
    ]
    assert lanes.batches(1, 0, 5) == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 8)]
