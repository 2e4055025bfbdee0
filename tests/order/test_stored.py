"""Samples as they lie, in rounds of blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.order import SequentialOrder
from penstock.order.stored import StoredOrder

sizes = (st.integers(1, 400), st.integers(1, 60), st.integers(1, 8))


@given(*sizes)
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


@given(*sizes)
def test_it_is_a_sequential_order_by_identity(size, block, window):
    order = StoredOrder(size, 7, block=block, window=window)
    assert order.identity() == SequentialOrder(size, 7).identity()
    assert order.lanes == 1
    assert np.array_equal(order.at(3, np.arange(size)), np.arange(size))


def test_a_golden_round():
    order = StoredOrder(10, block=2, window=2)
    assert [order.round_start(0, k) for k in range(order.rounds + 1)] == [0, 4, 8, 10]
