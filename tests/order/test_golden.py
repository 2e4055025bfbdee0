"""STATE-BREAKING: these values are frozen.

Every saved state means these orders, and every keyed augmentation these keys. If a change makes a
test of this file fail, a run that is resumed reads other samples than it should: undo the change,
or give the state a new format (``penstock/2``) and refuse the old one.
"""

import numpy as np

from penstock.keyed import sample_key
from penstock.order import (
    BlockOrder,
    Permutation,
    SequentialOrder,
    ShuffledOrder,
    Steps,
    derive_key,
    tiles,
)
from penstock.order.state import FORMAT

STATE_BREAKING = "this changes what saved states mean: see the top of this file"


def test_keys_are_frozen():
    assert derive_key(42, "order", 0) == 14118440112556768869, STATE_BREAKING
    assert derive_key(0) == 16294208416658607535, STATE_BREAKING
    assert derive_key(2**64 - 1, "augment", 7, "x") == 10433608418973902019, STATE_BREAKING
    assert sample_key(5, "noise", seed=42) == 17368088445684997682, STATE_BREAKING


def test_permutations_are_frozen():
    frozen = [
        (10, 7, [6, 9, 7, 1, 0, 8, 2, 3, 5, 4]),
        (100, 0, [99, 83, 40, 51, 55, 81, 8, 98]),
        (10**12, 2**64 - 1, [953999075510, 40662878476, 684899966682, 2754468760]),
        (2**62, 5, [4361920163427337729, 1994365910068957369]),
    ]
    for length, key, values in frozen:
        assert Permutation(length, key)(np.arange(len(values))).tolist() == values, STATE_BREAKING
    inverse = Permutation(1_000_003, 9).inverse(np.arange(4))
    assert inverse.tolist() == [38562, 387708, 102564, 355516], STATE_BREAKING


def test_orders_are_frozen():
    far = np.array([0, 10**11])
    frozen = [
        (SequentialOrder(5, 42), 1, np.arange(5), [0, 1, 2, 3, 4]),
        (ShuffledOrder(12, 42), 0, np.arange(12), [0, 5, 10, 9, 2, 7, 11, 3, 4, 1, 6, 8]),
        (ShuffledOrder(12, 42), 1, np.arange(12), [5, 9, 6, 8, 10, 7, 11, 3, 1, 2, 0, 4]),
        (ShuffledOrder(10**12, 7), 3, far, [10174485203, 634908789982]),
        (BlockOrder(10**12, 7, 4096, 64, 16), 3, far, [2705152283, 362979676112]),
        (BlockOrder(23, 42, 3, 2, 2), 1, np.arange(12), [18, 12, 20, 13, 5, 6, 19, 14, 3, 7, 4, 8]),
        (
            BlockOrder(23, 42, 3, 2, 2),
            1,
            np.arange(12, 23),
            [9, 22, 11, 17, 1, 15, 2, 16, 0, 21, 10],
        ),
    ]
    for order, epoch, positions, samples in frozen:
        assert order.at(epoch, positions).tolist() == samples, STATE_BREAKING


def test_ranks_and_tiles_are_frozen():
    steps = Steps(23, batch=3, world=2, lanes=2, drop_last=False)
    parts = [steps.rank_positions(p, rank=1).tolist() for p in (0, 6, 18)]
    assert parts == [[1, 3, 5], [7, 9, 11], [22, 19, 21]], STATE_BREAKING
    spans = [(500, 750), (250, 500), (0, 250), (750, 1000)]
    assert tiles(1000, 300, key=3) == spans, STATE_BREAKING


def test_the_format_is_named():
    assert FORMAT == "penstock/1"
