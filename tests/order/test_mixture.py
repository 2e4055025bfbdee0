"""Laws of `MixtureOrder`: shares, passes, draws, stages, and the way back."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.order import BlockOrder, ShuffledOrder, Steps
from penstock.order.mixture import MixtureOrder, shortest_counts
from penstock.order.weighted import WeightedOrder
from tests.order.composed import DTYPES, changes, deliver_on_changing_ranks, one, seeds

some_weights = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5)
few = settings(max_examples=12)


@st.composite
def mixtures(draw, stages=3):
    k, seed, lanes = draw(st.integers(1, 4)), draw(seeds), draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 60), min_size=k, max_size=k))
    members = [ShuffledOrder(n, draw(seeds)) for n in sizes]
    plan, place = [], 0
    for _ in range(draw(st.integers(1, stages))):
        counts = draw(st.lists(st.integers(0, 6), min_size=k, max_size=k).filter(any))
        plan.append((place, counts))
        place += draw(st.integers(1, 80))
    return MixtureOrder(members, plan, seed, lanes, until=draw(st.integers(1, 150)))


def test_weights_are_exact_fractions_whatever_their_scale():
    for weights in ([0.7, 0.2, 0.1], [1, 1, 1], [3, 5, 11]):
        counts = shortest_counts(weights)
        for shift in (-20, 3, 40):
            assert counts == shortest_counts([np.float64(w) * 2.0**shift for w in weights])
        assert counts == shortest_counts([Fraction(w) for w in weights])
    assert shortest_counts([10, 10, 9], tolerance=0.2) == (1, 1, 1)
    assert shortest_counts([1, 1, 1, 2], tolerance=0) == (1, 1, 1, 2)


def test_weights_that_get_no_row_are_refused():
    with pytest.raises(PlanError, match="no cycle of at most 1,000 rows"):
        shortest_counts([1, 2999], most=1000)
    for weights in ([], [0, 0], [-1, 2]):
        with pytest.raises(PlanError, match="must not be negative"):
            shortest_counts(weights)


def places_again(mixture, places):
    """The places of the draws at these places."""
    found = np.empty_like(places)
    member, draw = mixture.draws(places)
    for i in range(len(mixture.members)):
        found[member == i] = mixture.place_of_draw(i, draw[member == i])
    return found


@given(some_weights)
def test_counts_are_within_one_place_of_the_weights(weights):
    counts, total = shortest_counts(weights), sum(map(Fraction, weights))
    cycle = sum(counts)
    exact = [Fraction(weight) / total for weight in weights]
    pairs = zip(counts, exact, strict=True)
    assert all(abs(Fraction(count, cycle) - share) < Fraction(1, cycle) for count, share in pairs)


@few
@given(some_weights)
def test_the_shortest_cycle_is_within_the_tolerance_and_has_no_common_divisor(weights):
    counts, total = shortest_counts(weights, 0.05, most=20_000), sum(map(Fraction, weights))
    for c, w in zip(counts, weights, strict=True):
        assert abs(Fraction(c, sum(counts)) / (Fraction(w) / total) - 1) <= Fraction(0.05)
    assert np.gcd.reduce(counts) == 1
    assert shortest_counts([0.7, 0.2, 0.1]) == shortest_counts([700, 200, 100]) == (7, 2, 1)
    assert shortest_counts([0.5, 0.0]) == (1, 0)


@settings(max_examples=25)
@given(mixtures(), st.integers(0, 90))
def test_a_lane_draws_each_member_in_order_and_leaves_nothing_out(mixture, row):
    places = np.arange(300)
    member, draw = mixture.draws(places)
    for lane in range(mixture.lanes):
        own = places % mixture.lanes == lane
        for i in range(len(mixture.members)):
            mine = draw[own & (member == i)]
            assert np.array_equal(mine, np.arange(len(mine)) * mixture.lanes + lane)
        before = np.bincount(
            mixture.draws(np.arange(row) * mixture.lanes + lane)[0], minlength=len(mixture.members)
        )
        assert np.array_equal(mixture.drawn(row, lane), before)


@given(mixtures(stages=1), st.integers(0, 4))
def test_shares_are_exact_at_the_end_of_a_cycle_and_bounded_inside(mixture, cycles):
    counts = np.array(mixture.stages[0][1])
    cycle = int(counts.sum())
    for lane in range(mixture.lanes):
        assert np.array_equal(mixture.drawn(cycles * cycle, lane), cycles * counts)
        for row in range(cycles * cycle, (cycles + 1) * cycle):
            off = np.abs(mixture.drawn(row, lane) - row * counts / cycle)
            assert (off <= counts * (1 - counts / cycle) + 1e-9).all()


@few
@given(mixtures())
def test_a_member_is_passed_through_once_before_it_repeats(mixture):
    epochs = range(-(-250 // mixture.size))
    samples = np.concatenate([one(mixture, e) for e in epochs])
    passes = np.concatenate([mixture.passes(e, np.arange(mixture.size)) for e in epochs])
    seen = set(zip(samples.tolist(), passes.tolist(), strict=True))
    assert len(seen) == len(samples)  # never twice in one pass
    for i, n in enumerate(mixture.sizes.tolist()):
        rows = len(samples) // mixture.lanes
        drawn = min(mixture.drawn(rows, lane)[i] for lane in range(mixture.lanes)) * mixture.lanes
        for p in range(drawn // n):  # whole passes are whole
            assert all((int(mixture.first[i]) + s, p) in seen for s in range(n))


@settings(max_examples=20)
@given(mixtures(), st.integers(0, 5))
def test_a_mixture_has_an_inverse_and_random_access(mixture, epoch):
    positions = np.arange(mixture.size)
    samples, places = mixture.at(epoch, positions), epoch * mixture.size + positions
    assert np.array_equal(places_again(mixture, places), places)
    for sample in range(0, mixture.samples, 9):
        found = mixture.positions_of(epoch, sample)
        assert np.array_equal(found, np.flatnonzero(samples == sample))
    for dtype in DTYPES:
        assert np.array_equal(mixture.at(epoch, positions[::-3].astype(dtype)), samples[::-3])


@few
@given(mixtures(), st.integers(0, 3), st.integers(0, 9))
def test_all_positions_of_a_sample_are_found(mixture, epoch, first):
    samples = one(mixture, epoch)
    for sample in range(first, mixture.samples, 10):
        found = np.flatnonzero(samples == sample)
        assert np.array_equal(mixture.positions_of(epoch, sample), found)
        if len(found):
            assert mixture.position_of(epoch, np.array([sample]))[0] == found[0]


@few
@given(mixtures(), st.integers(0, 3), changes)
def test_a_mixture_is_the_same_on_any_sequence_of_ranks(mixture, epoch, change):
    got, left = deliver_on_changing_ranks(mixture, change, epoch)
    assert Counter(got.tolist()) <= Counter(one(mixture, epoch).tolist())
    assert len(got) == mixture.size - left and left < 5


@given(mixtures(stages=1), st.integers(1, 60))
def test_a_stage_cut_into_two_equal_ones_changes_nothing(mixture, place):
    counts, lanes = mixture.stages[0][1], mixture.lanes
    stages = [(0, counts), (place, counts)]
    cut = MixtureOrder(mixture.members, stages, mixture.seed, lanes, mixture.size)
    assert np.array_equal(one(cut), one(mixture))
    begin, whole = cut.stages[1][0], sum(counts) * lanes
    assert begin % whole == 0 and 0 <= begin - place < whole


@given(mixtures(), st.integers(0, 200), st.data())
def test_another_stage_changes_nothing_before_it(mixture, place, data):
    place, k = max(place, mixture.stages[-1][0]), len(mixture.members)
    counts = data.draw(st.lists(st.integers(0, 6), min_size=k, max_size=k).filter(any))
    stages = [*mixture.stages, (place, counts)]
    longer = MixtureOrder(mixture.members, stages, mixture.seed, mixture.lanes, mixture.size)
    begin = longer.stages[-1][0]
    for a, b in zip(*(order.draws(np.arange(begin)) for order in (mixture, longer)), strict=True):
        assert np.array_equal(a, b)
    assert longer.stages[:-1] == mixture.stages and begin >= place


@few
@given(
    st.lists(st.integers(5, 90), min_size=2, max_size=3),
    seeds,
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_a_rank_reads_only_its_own_blocks_one_window_at_a_time(
    sizes, seed, world, per_rank, more, block, window
):
    lanes = world * per_rank
    members = [BlockOrder(n, seed, block, window, lanes * more) for n in sizes]
    counts = [3, 2, 1][: len(sizes)]
    mixture = MixtureOrder(members, [(0, counts)], seed, lanes, until=lanes * 60)
    steps = Steps(mixture.size, per_rank * 2, world, lanes)
    for p in range(0, mixture.size, steps.whole):
        for rank in range(world):
            own = set((steps.rank_positions(p, rank) % lanes).tolist())
            assert own <= set(steps.lanes_of(rank))
    for epoch in (0, 1):
        for lane in range(lanes):
            places = mixture.places_at(epoch, np.arange(lane, mixture.size, lanes))
            member, draw = mixture.draws(places)
            for i, order in enumerate(members):
                e, p = np.divmod(draw[member == i], order.size)
                held = []
                for pass_ in np.unique(e).tolist():
                    here = p[e == pass_]
                    assert len(set((here % lanes).tolist())) == 1  # one share of storage per pass
                    held += [(pass_, k) for k in order.locate(pass_, here)[0].tolist()]
                assert held == sorted(held)  # a window that was left is never needed again


def test_an_epoch_of_a_mixture():
    members, stage = [ShuffledOrder(100, 1), ShuffledOrder(30, 2)], (0, [7, 3])
    assert MixtureOrder(members, [stage], 0, until="first").size == 100  # ten cycles: 70 and 30
    assert MixtureOrder(members, [stage], 0, until="all").size == 150  # fifteen: 105 and 45
    assert MixtureOrder(members, [stage], 0, lanes=2, until="first").size == 100
    with pytest.raises(PlanError, match="until must be a number"):
        MixtureOrder(members, [stage, (50, [1, 1])], 0)
    with pytest.raises(PlanError, match="several shares"):
        MixtureOrder([BlockOrder(9, 0, 2, 2, lanes=3)], [(0, [1])], 0, lanes=2)


@given(seeds, st.lists(st.integers(0, 2**61), min_size=1, max_size=9), st.integers(1, 40))
def test_a_mixture_of_any_size_has_an_inverse(seed, places, lanes):
    blocks = BlockOrder(10**9 + 7, seed, 4096, 64, lanes)
    members = [ShuffledOrder(10**12, seed), blocks, ShuffledOrder(3, seed)]
    stages = [(0, [700, 299, 1]), (10**15, [1, 1, 8])]
    mixture = MixtureOrder(members, stages, seed, lanes, until=2**61 + 1)
    places = np.array(places)
    assert np.array_equal(places_again(mixture, places), places)


@settings(max_examples=8)
@given(seeds, st.integers(1, 40), st.integers(0, 4))
def test_members_that_repeat_samples_themselves_have_passes_of_their_own(seed, until, epoch):
    inner = MixtureOrder(
        [ShuffledOrder(3, seed), ShuffledOrder(5, 1)], [(0, [2, 1])], seed, until=7
    )
    weighted = WeightedOrder([1, 5, 2], 6, seed)
    mixture = MixtureOrder([inner, weighted], [(0, [2, 1])], seed, until=until)
    assert mixture.samples == 11
    places = np.arange(until)
    samples = [one(mixture, e) for e in range(epoch + 1)]
    seen = [
        pair
        for e in range(epoch + 1)
        for pair in zip(samples[e].tolist(), mixture.passes(e, places).tolist(), strict=True)
    ]
    assert len(set(seen)) == len(seen)
    for sample in range(seed % 3, mixture.samples, 3):
        found = np.flatnonzero(samples[epoch] == sample)
        assert np.array_equal(mixture.positions_of(epoch, sample), found)
