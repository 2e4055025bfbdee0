"""Laws of subsets and of blocks that hold different numbers of samples."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.order import BlockOrder, ShuffledOrder
from penstock.order.orders import positions_of
from penstock.order.subset import Bitmap, RaggedBlockOrder, SubsetOrder
from tests.order.composed import DTYPES, changes, deliver_on_changing_ranks, one, seeds

masks = st.one_of(
    st.lists(st.booleans(), min_size=1, max_size=1300),
    st.integers(1, 1300).map(lambda n: [True] * n),
).filter(any)
ragged = st.lists(st.integers(0, 12), min_size=1, max_size=40).filter(any)
small = st.integers(1, 5)


@given(masks)
def test_rank_and_select_are_inverse(mask):
    mask = np.array(mask)
    bitmap, kept = Bitmap(mask), np.flatnonzero(mask)
    assert bitmap.count == len(kept)
    assert np.array_equal(bitmap.select(np.arange(len(kept))), kept)
    ranks = np.concatenate([[0], np.cumsum(mask)])
    assert np.array_equal(bitmap.rank(np.arange(len(mask) + 1)), ranks)
    for dtype in DTYPES:
        assert np.array_equal(Bitmap(kept.astype(dtype), len(mask)).bits, bitmap.bits)
    assert [s in bitmap for s in range(len(mask))] == mask.tolist()


@settings(max_examples=20)
@given(masks, seeds, st.integers(0, 9), st.integers(1, 30), small, small)
def test_a_subset_is_a_bijection_onto_what_is_kept(mask, seed, epoch, block, window, lanes):
    bitmap, kept = Bitmap(np.array(mask)), np.flatnonzero(mask)
    for order in (
        ShuffledOrder(len(kept), seed),
        BlockOrder(len(kept), seed, block, window, lanes),
        RaggedBlockOrder(bitmap.block_counts(block), seed, window, lanes),
    ):
        subset = SubsetOrder(bitmap, order)
        samples = one(subset, epoch)
        assert np.array_equal(np.sort(samples), kept)
        assert np.array_equal(subset.position_of(epoch, samples), np.arange(len(kept)))
    for left_out in np.flatnonzero(~np.array(mask))[:1]:
        assert positions_of(subset, 0, int(left_out)) == []
        with pytest.raises(IndexError):
            subset.position_of(0, np.array([left_out]))


@given(ragged, seeds, st.integers(0, 9), small, small)
def test_a_ragged_order_is_a_bijection_with_inverse_and_random_access(
    counts, seed, epoch, window, lanes
):
    order = RaggedBlockOrder(counts, seed, window, lanes)
    items, positions = one(order, epoch), np.arange(order.size)
    assert np.array_equal(np.sort(items), positions)
    assert np.array_equal(order.position_of(epoch, items), positions)
    assert np.array_equal(order.at(epoch, positions[::-2]), items[::-2])


@given(ragged, seeds, small, small)
def test_storage_blocks_are_read_once_by_one_lane_one_window_at_a_time(counts, seed, window, lanes):
    order = RaggedBlockOrder(counts, seed, window, lanes)
    items, reads = one(order, 1), Counter()
    for lane in range(lanes):
        mine, row = items[lane::lanes], 0
        for w in order.windows(1, lane):
            assert w.start == row and len(w.reads) <= window  # rows follow each other
            spans = [order.first_item[b] + np.arange(a, a + n) for b, a, n in w.reads]
            assert np.array_equal(np.sort(np.concatenate(spans)), np.sort(mine[w.start : w.stop]))
            reads.update(b for b, _, _ in w.reads)
            row = w.stop
        assert row == len(mine)
    assert set(reads) == set(np.flatnonzero(counts).tolist())  # what is empty is not read
    assert sum(reads.values()) <= len(reads) + lanes - 1  # cut blocks are read by two lanes


@given(ragged, seeds, small, small, changes)
def test_a_ragged_order_is_the_same_on_any_sequence_of_ranks(counts, seed, window, lanes, change):
    order = RaggedBlockOrder(counts, seed, window, lanes)
    got, left = deliver_on_changing_ranks(order, change)
    assert len(set(got.tolist())) == len(got) == order.size - left and left < 5


def test_no_item_is_always_last():
    order, last, epochs = RaggedBlockOrder([7] * 5 + [1], 3, 4, 2), Counter(), 600
    for epoch in range(epochs):
        last.update(order.at(epoch, np.arange(order.size - 4, order.size)).tolist())
    assert max(last.values()) < epochs * 4 / order.size * 2.2 and len(last) == order.size


def test_what_cannot_be_a_subset_is_refused():
    for kept, size in (([0, 9], 9), ([-1], 9), ([0], None), ([0.5], 9), ([[0]], 9)):
        with pytest.raises(PlanError):
            Bitmap(np.array(kept), size)
    with pytest.raises(PlanError, match="no block"):
        RaggedBlockOrder([0, 0], 1, 1)
    with pytest.raises(PlanError, match="kept ones"):
        SubsetOrder(Bitmap([True, False]), ShuffledOrder(2, 1))
