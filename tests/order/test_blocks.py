"""Block orders: what a lane reads, how much it holds, and that nothing is always lost."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock import PlanError
from penstock.order import BlockOrder, SequentialOrder
from penstock.order.blocks import StoredOrder

seeds = st.integers(0, 2**64 - 1)
small = st.integers(1, 100)
geometry = st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(1, 9))
epochs = st.integers(0, 9)


def samples_of(spans):
    parts = [np.arange(span.start, span.start + span.count) for span in spans]
    return np.concatenate(parts or [np.empty(0, np.int64)])


def windows(order):
    return [(k, column) for k in range(order.rounds) for column in range(order.lanes)]


@given(small, seeds, geometry, epochs)
def test_the_plan_of_reads_is_the_window_in_the_order_of_its_positions(n, seed, blocks, epoch):
    order = BlockOrder(n, seed, *blocks)
    read, met = [], []
    for k, column in windows(order):
        samples = samples_of(order.window_reads(epoch, k, column))
        positions = order.window_positions(epoch, k, column)
        assert positions.dtype == np.int64 and len(positions) == len(samples)
        begin, end = order.round_start(epoch, k), order.round_start(epoch, k + 1)
        assert ((positions >= begin) & (positions < end)).all()
        read.append(samples)
        met.append(positions)
    samples, positions = np.concatenate(read), np.concatenate(met)
    assert np.array_equal(order.at(epoch, positions), samples)
    assert np.array_equal(order.position_of(epoch, samples), positions)
    assert np.array_equal(np.sort(positions), np.arange(n))


@given(small, seeds, geometry, epochs)
def test_locate_says_which_window_and_where_in_it(n, seed, blocks, epoch):
    order = BlockOrder(n, seed, *blocks)
    k, column, index, length = order.locate(epoch, np.arange(n))
    for window in windows(order):
        here = (k == window[0]) & (column == window[1])
        assert np.array_equal(np.sort(index[here]), np.arange(here.sum()))
        assert (length[here] == here.sum()).all()
    assert [order.round_of(epoch, p) for p in range(0, n, 7)] == k[::7].tolist()
    assert order.round_start(epoch, 0) == 0 and order.round_start(epoch, order.rounds) == n


@given(small, seeds, geometry, epochs)
def test_a_lane_holds_and_reads_no_more_than_promised(n, seed, blocks, epoch):
    order = BlockOrder(n, seed, *blocks)
    block, window, lanes = blocks
    owners, reads = {}, dict.fromkeys(range(lanes), 0)
    for k, column in windows(order):
        spans = order.window_reads(epoch, k, column)
        held = sum(span.count for span in spans)
        assert held <= order.window_samples <= (window + 1) * block
        lane = set((order.window_positions(epoch, k, column) % lanes).tolist())
        assert len(lane) <= 1  # lane = position % lanes, all along
        for span in spans:
            first, last = span.start // block, (span.start + span.count - 1) // block
            assert first == last  # inside one block
            if span.count == block:
                owners.setdefault(first, set()).add((k, column))
        if lane:
            reads[lane.pop()] += len({span.start // block for span in spans})
    assert all(len(windows_of) == 1 for windows_of in owners.values())
    assert all(count <= order.rows + 2 for count in reads.values())


@given(st.integers(40, 160), seeds, geometry)
def test_no_window_is_tiny(n, seed, blocks):
    order = BlockOrder(n, seed, *blocks)
    block, window, _lanes = blocks
    assume(order.rows >= window)
    k, column, _, length = order.locate(0, np.arange(n))
    assert len(np.unique(k * order.lanes + column)) == order.rounds * order.lanes
    assert length.min() * 2 >= window * block


@given(small, seeds, geometry, epochs, st.integers(1, 10))
def test_few_and_many_positions_at_once_are_the_same(n, seed, blocks, epoch, times):
    """The order takes one path for few windows and another for many."""
    order = BlockOrder(n, seed, *blocks)
    positions = np.tile(np.arange(n), times * 7)
    samples = order.at(epoch, positions)
    for p in range(0, n, 23):
        assert order.at(epoch, np.array([p]))[0] == samples[p]
    assert np.array_equal(order.position_of(epoch, samples), positions)


def test_neither_the_short_block_nor_any_other_sample_is_always_dropped():
    n, step = 16 * 4 * 2 * 8 + 3, 32  # the leftover is three samples of 1,027
    order = BlockOrder(n, 1, block=16, window=4, lanes=2)
    lost = np.zeros(n)
    for epoch in range(600):
        lost[order.at(epoch, np.arange(n // step * step, n))] += 1
    assert lost.max() < 15  # 1.8 on average: none is lost much more often than another


def test_a_window_mixes_blocks_from_all_over_the_dataset():
    order = BlockOrder(100_000, 3, block=100, window=16)
    spread = [np.ptp(samples_of(order.window_reads(0, k, 0))) for k in range(order.rounds)]
    assert np.median(spread) > 80_000
    samples = order.at(0, np.arange(1600))
    assert (np.diff(samples) == 1).mean() < 0.01  # and within it samples are shuffled


@pytest.mark.parametrize("wrong", ["block", "window", "lanes"])
def test_a_geometry_below_one_is_refused(wrong):
    geometry = {"block": 2, "window": 2, "lanes": 1, wrong: 0}
    with pytest.raises(PlanError, match=f"{wrong} must be at least 1, got 0"):
        BlockOrder(10, 1, **geometry)


stored_sizes = (st.integers(1, 400), st.integers(1, 60), st.integers(1, 8))


@given(*stored_sizes)
def test_rounds_cover_every_position_once_in_order(size, block, window):
    order = StoredOrder(size, block=block, window=window)
    seen = []
    for k in range(order.rounds):
        begin, end = order.round_start(5, k), order.round_start(5, k + 1)
        positions = order.window_positions(5, k, 0)
        assert positions.tolist() == list(range(begin, end))
        assert 0 < end - begin <= order.window_samples <= block * window
        assert {order.round_of(5, int(p)) for p in positions} == {k}
        reads = order.window_reads(5, k, 0)
        samples = [s for span in reads for s in range(span.start, span.start + span.count)]
        assert samples == order.at(5, positions).tolist()
        assert all(0 < span.count <= block and span.start % block == 0 for span in reads)
        assert len(reads) <= window
        seen += samples
    assert seen == list(range(size))


@given(*stored_sizes)
def test_it_is_a_sequential_order_by_identity(size, block, window):
    order = StoredOrder(size, 7, block=block, window=window)
    assert order.identity() == SequentialOrder(size, 7).identity()
    assert order.lanes == 1
    assert np.array_equal(order.at(3, np.arange(size)), np.arange(size))


def test_a_golden_round():
    order = StoredOrder(10, block=2, window=2)
    assert [order.round_start(0, k) for k in range(order.rounds + 1)] == [0, 4, 8, 10]
