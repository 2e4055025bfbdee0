"""Laws of mixtures that are read in blocks: the same shares and passes, each block read once."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.mixed_blocks import MixedBlocks
from tests.order.composed import changes, deliver_on_changing_ranks, one, seeds


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


@settings(max_examples=20)
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


@settings(max_examples=25)
@given(mixed(), st.integers(0, 3))
def test_a_window_is_what_it_reads_and_lanes_read_blocks_once(order, epoch):
    samples, seen = one(order, epoch), []
    for k in range(order.rounds):
        begin, end = order.round_start(epoch, k), order.round_start(epoch, k + 1)
        assert order.round_of(epoch, begin) == order.round_of(epoch, end - 1) == k
        for lane in range(order.lanes):
            reads = order.window_reads(epoch, k, lane)
            positions = order.window_positions(epoch, k, lane)
            held = [np.arange(span.start, span.start + span.count) for span in reads]
            assert np.array_equal(np.concatenate([[], *held]), samples[positions])
            assert (positions % order.lanes == lane).all()
            assert ((positions >= begin) & (positions < end)).all()
            assert all(span.count <= order.block for span in reads)
            if len(order.mixture.stages) == 1:
                members = len(order.mixture.members)
                passes = len(set(order.passes(epoch, positions).tolist()))
                assert len(reads) <= order.window + 2 * members * max(1, passes)
            seen += positions.tolist()
    assert sorted(seen) == list(range(order.size))


@settings(max_examples=15)
@given(mixed(), changes)
def test_mixed_blocks_are_the_same_on_any_sequence_of_ranks(order, change):
    got, left = deliver_on_changing_ranks(order, change, 1)
    assert Counter(got.tolist()) <= Counter(one(order, 1).tolist())
    assert len(got) == order.size - left and left < 5
