"""Laws of mixtures that are read in blocks: the same shares and passes, each block read once."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order import SequentialOrder
from penstock.order.block_rounds import OrderInRounds
from penstock.order.mixed_blocks import MixedBlocks
from penstock.order.mixture import MixtureOrder
from tests.order.composed import (
    assert_rounds_are_read,
    changes,
    deliver_on_changing_ranks,
    one,
    seeds,
)


@st.composite
def mixed(draw, stages_at_most=3):
    k = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(1, 60), min_size=k, max_size=k))
    stages, place = [], 0
    for _ in range(draw(st.integers(1, stages_at_most))):
        counts = draw(st.lists(st.integers(0, 4), min_size=k, max_size=k).filter(any))
        stages.append((place, counts))
        place += draw(st.integers(1, 90))
    block, window, lanes = (draw(st.integers(1, n)) for n in (6, 4, 3))
    until = draw(st.integers(1, 90))
    return MixedBlocks(sizes, stages, draw(seeds), block, window, lanes, until)


@settings(max_examples=10)
@given(mixed())
def test_shares_and_passes_are_those_of_the_mixture(order):
    positions, came = np.arange(order.size), set()
    for epoch in range(3):
        samples, passes = order.at_with_passes(epoch, positions)
        plain = order.mixture.at_with_passes(epoch, positions)
        member = [
            np.searchsorted(order.mixture.first, each, side="right") for each in (samples, plain[0])
        ]
        assert np.array_equal(*member) and np.array_equal(passes, plain[1])  # row by row
        pairs = set(zip(samples.tolist(), passes.tolist(), strict=True))
        assert len(pairs) == order.size and not pairs & came  # each once in a pass
        came |= pairs
        assert np.array_equal(order.at(epoch, positions[::-3]), samples[::-3])
        for sample in range(epoch, order.samples, 3):
            here = np.flatnonzero(samples == sample)
            assert np.array_equal(order.positions_of(epoch, sample), here)


@settings(max_examples=20)
@given(mixed())
def test_a_stage_changes_nothing_before_it(order):
    stages = order.mixture.stages
    sizes, geometry = order.mixture.sizes, (order.seed, order.block, order.window, order.lanes)
    before = MixedBlocks(sizes, stages[:-1] or stages, *geometry, order.size)
    places = np.arange(stages[-1][0] if len(stages) > 1 else order.size)
    for epoch in range(-(-len(places) // order.size)):
        here = places[epoch * order.size : (epoch + 1) * order.size] - epoch * order.size
        assert np.array_equal(order.at(epoch, here), before.at(epoch, here))


@settings(max_examples=15)
@given(mixed(), st.integers(0, 3))
def test_a_window_is_what_it_reads_and_lanes_read_blocks_once(order, epoch):
    assert_rounds_are_read(order, epoch)
    for k in range(order.rounds if len(order.mixture.stages) == 1 else 0):
        for lane in range(order.lanes):
            reads = order.window_reads(epoch, k, lane)
            assert len(reads) <= order.window + 4 * len(order.mixture.members)


@settings(max_examples=15)
@given(mixed(), st.integers(0, 2), st.integers(1, 30), st.integers(1, 4))
def test_any_order_with_one_lane_is_read_in_rounds(order, epoch, block, window):
    members = [SequentialOrder(n) for n in order.mixture.sizes]
    plain = MixtureOrder(members, order.mixture.stages, order.seed, until=order.size)
    stored = OrderInRounds(plain, block, window, plain.first[:-1])
    assert_rounds_are_read(stored, epoch)
    assert np.array_equal(one(stored, epoch), one(plain, epoch))
    positions = np.arange(plain.size)
    assert np.array_equal(stored.passes(epoch, positions), plain.passes(epoch, positions))
    assert stored.identity() == plain.identity()
    for sample in range(0, plain.samples, 7):
        found = stored.positions_of(epoch, sample)
        assert list(found) == plain.positions_of(epoch, sample).tolist()


@settings(max_examples=15)
@given(mixed(), changes)
def test_mixed_blocks_are_the_same_on_any_sequence_of_ranks(order, change):
    got, left = deliver_on_changing_ranks(order, change, 1)
    assert Counter(got.tolist()) <= Counter(one(order, 1).tolist())
    assert len(got) == order.size - left and left < 5
