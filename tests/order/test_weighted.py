"""Laws of weighted orders: how often a sample comes, exactly, and where."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.order import ShuffledOrder
from penstock.order.weighted import COPY, Reweighted, WeightedBlocks, WeightedOrder, fixed_point
from tests.order.composed import (
    DTYPES,
    assert_rounds_are_read,
    changes,
    deliver_on_changing_ranks,
    one,
    seeds,
)

integer_weights = st.lists(st.integers(0, 50), min_size=1, max_size=60).filter(any)
float_weights = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=60).filter(
    any
)
epochs = st.integers(0, 9)


@given(st.one_of(integer_weights, float_weights), st.integers(1, 400), seeds, epochs)
def test_every_sample_comes_floor_or_ceil_of_its_due(weights, places, seed, epoch):
    order = WeightedOrder(np.array(weights), places, seed)
    count = np.bincount(one(order, epoch), minlength=len(weights))
    units = fixed_point(np.array(weights)).tolist()
    for c, u in zip(count.tolist(), units, strict=True):
        due = Fraction(places * u, sum(units))
        assert due.__floor__() <= c <= due.__ceil__()
    assert count.sum() == places


@given(
    st.integers(1, 300), st.sampled_from([1, 3, 0.1, 1e-9, 7e300]), seeds, epochs, st.integers(1, 3)
)
def test_equal_weights_are_the_shuffled_order_itself(n, weight, seed, epoch, times):
    order, plain = WeightedOrder(np.full(n, weight), n, seed), ShuffledOrder(n, seed)
    assert np.array_equal(one(order, epoch), one(plain, epoch))
    assert (order.passes(epoch, np.arange(n)) == epoch).all()  # augmented as before
    repeated = WeightedOrder(np.full(n, weight), n * times, seed)
    assert (np.bincount(one(repeated, epoch)) == times).all()


@given(integer_weights, st.integers(1, 300), seeds, epochs)
def test_the_positions_of_all_samples_are_all_positions(weights, places, seed, epoch):
    order = WeightedOrder(weights, places, seed)
    where = [order.positions_of(epoch, s) for s in range(len(weights))]
    assert sorted(np.concatenate(where).tolist()) == list(range(places))
    samples = one(order, epoch)
    for s, positions in enumerate(where):
        assert (samples[positions] == s).all() and (np.diff(positions) > 0).all()
        passes = np.sort(order.passes(epoch, positions))
        assert np.array_equal(passes, epoch + COPY * np.arange(len(positions)))
    for dtype in DTYPES:
        assert np.array_equal(order.at(epoch, np.arange(places).astype(dtype)), samples)


@given(float_weights, st.integers(1, 200), seeds, st.integers(-30, 30))
def test_a_weighted_order_does_not_depend_on_scale_or_type(weights, places, seed, shift):
    small = np.array(weights, np.float32)
    assume(small.any())
    order = WeightedOrder(small, places, seed)
    assert WeightedOrder(small.astype(np.float64) * 2.0**shift, places, seed).digest == order.digest
    whole = np.rint(small).astype(np.int64) + 1
    types = (np.int32, np.int64, np.uint64)
    assert len({WeightedOrder(whole.astype(t), places, seed).digest for t in types}) == 1


@given(
    st.integers(1, 2**31),
    seeds,
    st.lists(st.integers(0, 2**56), min_size=1, max_size=30).filter(any),
    st.lists(st.integers(0, 2**31), max_size=20),
)
def test_points_are_exact_at_any_size(places, seed, weights, ts):
    order = WeightedOrder(np.array(weights, np.uint64), places, seed)
    t = np.array([v % places for v in ts] + [0, places - 1])
    phase, total = order.phase(3), sum(weights)
    assert order.points(3, t).tolist() == [(int(v) * total + phase) // places for v in t]
    marks = np.array([*order.ends.tolist(), 0, total])
    before = [max(0, -((phase - places * m) // total)) for m in marks.tolist()]
    assert order.points_before(3, marks).tolist() == before
    first, count = order.copies(3, np.arange(len(weights)))
    assert int(count.sum()) == places and np.array_equal(first[1:], np.cumsum(count)[:-1])


def test_over_many_epochs_a_sample_gets_its_due():
    weights, epochs = np.random.default_rng(0).gamma(0.5, size=200), 1000
    order = WeightedOrder(weights, 150, seed=5)
    count = sum(np.bincount(one(order, e), minlength=200) for e in range(epochs))
    due = weights / weights.sum() * 150
    spread = np.sqrt(np.maximum((due % 1) * (1 - due % 1), 1e-6) * epochs)  # floor or ceil: a coin
    assert (np.abs(count - due * epochs) < 6 * spread + 1).all()


@settings(max_examples=20)
@given(integer_weights, integer_weights, st.integers(1, 80), seeds, st.integers(1, 5), changes)
def test_new_weights_change_nothing_before_them(first, second, places, seed, epoch, change):
    n = min(len(first), len(second))
    assume(any(first[:n]) and any(second[:n]))
    old, new = WeightedOrder(first[:n], places, seed), WeightedOrder(second[:n], places, seed)
    order = Reweighted([(0, old), (epoch, new)])
    for e in range(epoch + 2):
        assert np.array_equal(one(order, e), one(old if e < epoch else new, e))
    got, left = deliver_on_changing_ranks(order, change, epoch)
    assert Counter(got.tolist()) <= Counter(one(new, epoch).tolist()) and len(got) == places - left
    assert order.identity()["weights"] == [[0, old.digest], [epoch, new.digest]]
    later = Reweighted([(0, old.digest), (epoch, new)])  # the old weights are not known any more
    assert later.identity() == order.identity()
    assert np.array_equal(one(later, epoch), one(new, epoch))
    with pytest.raises(PlanError, match="not known"):
        later.at(0, np.arange(1))


@settings(max_examples=12)
@given(integer_weights, st.integers(1, 300), seeds, *(st.integers(1, n) for n in (9, 4, 4)))
def test_weights_read_in_blocks_are_the_same_copies(weights, places, seed, block, window, lanes):
    plain = WeightedOrder(weights, places, seed)
    order = WeightedBlocks(Reweighted([(0, plain)]), block, window, lanes)
    for epoch in (0, 3):
        samples = one(order, epoch)
        assert Counter(samples.tolist()) == Counter(one(plain, epoch).tolist())
        reads = {(b, lane) for lane in range(lanes) for b in set(samples[lane::lanes] // block)}
        assert len(reads) <= len(set(samples // block)) + lanes - 1
        for s in set(samples.tolist()):
            assert np.array_equal(order.positions_of(epoch, s), np.flatnonzero(samples == s))
        pairs = zip(samples.tolist(), order.passes(epoch, np.arange(places)).tolist(), strict=True)
        expected = zip(
            *(each.tolist() for each in plain.at_with_passes(epoch, np.arange(places))), strict=True
        )
        assert Counter(pairs) == Counter(expected)
        assert_rounds_are_read(order, epoch)


@pytest.mark.parametrize(
    "weights", [[], [0, 0], [-1, 2], [np.nan], [np.inf], [[1, 2]], ["a"], [2**61, 2**61]]
)
def test_weights_that_mean_nothing_are_refused(weights):
    with pytest.raises(PlanError, match="weights"):
        WeightedOrder(np.array(weights), 5, 1)
