"""Laws of length batches: budget, whole groups, equal steps on all ranks, and resuming."""

from __future__ import annotations

import itertools
from collections import Counter
from itertools import cycle

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.order import BlockOrder, Plan, ShuffledOrder, Skips
from penstock.order.length_batches import LaneBatches, LengthBatches, LengthSteps, split_to
from tests.order.composed import one, seeds

few, some = settings(max_examples=8), settings(max_examples=20)


@st.composite
def length_batches(draw):
    n, seed, group = draw(st.integers(8, 150)), draw(seeds), draw(st.integers(1, 4))
    lengths = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 30, n)
    cut = draw(st.sampled_from([{"budget": 29}, {"budget": 80}, {"count": 4}, {"count": 1}]))
    window = draw(st.integers(4, 60))
    return LengthBatches(ShuffledOrder(n, seed), lengths, window, group=group, **cut)


def again(order, lengths=None):
    """The same order, which knows nothing of what was planned before."""
    lengths = order.lengths if lengths is None else lengths
    cut = {"budget": order.budget, "count": order.count, "group": order.group}
    return LengthBatches(order.order, lengths, order.window, **cut)


def cuts(order, epoch):
    return order.batches(epoch, 0, order.size)


def fits(order, samples):
    """Whether a batch keeps to the budget, or to the count."""
    if order.count:
        return len(samples) <= order.count
    return len(samples) * int(order.lengths[samples].max()) <= order.budget or len(samples) == 1


@few
@given(length_batches(), st.integers(0, 5))
def test_length_batches_are_an_order_with_inverse(order, epoch):
    samples, positions = one(order, epoch), np.arange(order.size)
    assert np.array_equal(np.sort(samples), positions)
    assert np.array_equal(order.position_of(epoch, samples), positions)
    for dtype in (np.uint8, np.int32, np.float32):
        same = again(order, order.lengths.astype(dtype))
        assert np.array_equal(one(same, epoch), samples) and same.identity() == order.identity()


@some
@given(length_batches(), st.integers(0, 5))
def test_batches_keep_to_the_budget_and_windows_to_whole_groups(order, epoch):
    windows, samples = Counter(), one(order, epoch)
    for i, (a, b) in enumerate(cuts(order, epoch)):
        assert b > a and fits(order, samples[a:b])
        assert order.windows.of(a) == order.windows.of(b - 1)
        assert order.batch_at(epoch, a) == i and order.batch_start(epoch, i) == a
        windows[int(order.windows.of(a))] += 1
    counts = [windows[w] for w in range(order.windows.count)]
    assert counts == np.diff(order.first_batches(epoch)).tolist()
    whole = order.windows.count - (order.size % order.group > 0)  # the last one may not divide
    assert all(count % order.group == 0 for count in counts[:whole])


@some
@given(length_batches(), st.integers(1, 4), st.integers(0, 3))
def test_a_world_that_divides_the_group_loses_nothing_and_splits_nothing(order, world, epoch):
    last = int(np.diff(order.first_batches(epoch))[-1])
    assume(order.group % world == 0 and last % order.group == 0)
    p, seen, steps = 0, [], LengthSteps(order.size, 1, world, 1, False, batches=order).of(epoch)
    while step := steps.batches_at(p):
        assert len(step) == world and len({int(order.windows.of(a)) for a, _ in step}) == 1
        seen += step
        p = step[-1][1]
    assert seen == cuts(order, epoch) and p == order.size


@some
@given(
    length_batches(),
    st.lists(st.integers(1, 5), min_size=1, max_size=9),
    st.booleans(),
    st.integers(0, 2),
)
def test_ranks_have_equal_steps_and_nothing_is_lost_on_any_sequence_of_worlds(
    order, worlds, drop, epoch
):
    p, seen, samples = 0, [], one(order, epoch)
    for world in cycle(worlds):
        steps = LengthSteps(order.size, 1, world, 1, drop, batches=order).of(epoch)
        stop, left = steps.stop(p), steps.steps_from(p)
        step = steps.batches_at(p)
        if not step:
            assert stop == p and left == 0
            break
        assert len(step) == world and step[0][0] == p and all(b > a for a, b in step)
        assert stop == step[-1][1] and left == 1 + steps.steps_from(stop)
        assert steps.span(steps.step_of(p), p) == (p, stop)
        for rank, (a, b) in enumerate(step):
            assert np.array_equal(steps.rank_positions(p, rank), np.arange(a, b))
            assert fits(order, samples[a:b])
        seen += step
        p = stop
    assert order.size - p < world if not drop else len(order.batches(epoch, p, world)) < world
    assert all(a[1] == b[0] for a, b in itertools.pairwise(seen))


@few
@given(length_batches(), st.integers(1, 4), st.integers(0, 2), st.data())
def test_steps_counted_from_any_origin_cover_the_epoch(order, world, epoch, data):
    steps = LengthSteps(order.size, 1, world, 1, False, batches=order).of(epoch)
    p, starts = 0, []
    while steps.steps_from(p):
        starts.append(p)
        p = steps.stop(p)
    assert [steps.span(i)[0] for i in range(len(starts))] == starts and steps.count == len(starts)
    origin = data.draw(st.sampled_from(starts))
    spans = [steps.span(i, origin) for i in range(steps.step_of(origin) + steps.steps_from(origin))]
    assert spans[0][0] == 0 and spans[-1][1] == p and (origin in {a for a, _ in spans})
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))


@few
@given(
    length_batches(),
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 60)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2),
)
def test_skipped_positions_leave_every_other_batch_as_it_is(order, holes, world, drop, epoch):
    skips = Skips([(epoch, a, min(a + n, order.size)) for a, n in holes])
    assume(skips)
    plan = Plan(order, order.make_steps(order.size, 1, world, 1, drop)).skipping(skips)
    steps, p, seen = plan.steps.of(epoch), 0, []
    assert steps.size == order.size - sum(stop - start for _, start, stop in skips.ranges)
    while step := steps.batches_at(p):
        assert len(step) == world and step[0][0] == p and all(b > a for a, b in step)
        assert steps.span(len(seen) // world) == (p, step[-1][1])
        assert steps.steps_from(p) == 1 + steps.steps_from(step[-1][1])
        for rank, (a, b) in enumerate(step):
            assert steps.locate(a) == (len(seen) // world, rank, 0)
            assert steps.locate(b - 1) == (len(seen) // world, rank, b - 1 - a)
        seen += step
        p = step[-1][1]
    assert steps.count == len(seen) // world and steps.stop(p) == p
    assert steps.size - p < world if not drop else len(plan.steps.kept.batches(epoch, p, 9)) < world
    left = [skips.kept(epoch, np.array(batch)).tolist() for batch in cuts(order, epoch)]
    whole = [(a, b) for a, b in left if a < b]
    assert seen[: len(whole) // world * world] == whole[: len(whole) // world * world]
    other = plan.steps.of(epoch + 1)  # nothing is skipped there
    assert other.size == order.size and other.kept.total(epoch + 1) == order.total(epoch + 1)


@few
@given(length_batches(), st.integers(0, 3))
def test_resuming_at_any_batch_gives_the_rest(order, epoch):
    for i, (a, b) in list(enumerate(whole := cuts(order, epoch)))[::4]:
        fresh = again(order)
        assert fresh.batches(epoch, a, 1) == [(a, b)]
        assert np.array_equal(fresh.at(epoch, np.arange(a, b)), order.at(epoch, np.arange(a, b)))
        assert fresh.batches(epoch, a, order.size) == whole[i:]


def test_resuming_asks_the_order_for_one_window():
    class Asked(ShuffledOrder):
        asked = 0

        def at(self, epoch, positions):
            Asked.asked += len(positions)
            return super().at(epoch, positions)

    order = LengthBatches(Asked(10_000, 1), np.arange(10_000) % 50, 100, budget=400)
    order.at(3, np.concatenate([np.arange(a, b) for a, b in order.batches(3, 5_000, 2)]))
    assert Asked.asked <= 200


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 60))
def test_halving_keeps_every_sample_and_reaches_the_count(sizes, count):
    ends = split_to(np.cumsum(sizes), count)
    assert ends[-1] == sum(sizes) and (np.diff(ends, prepend=0) > 0).all()
    assert len(ends) == max(len(sizes), min(count, sum(sizes)))
    assert set(np.cumsum(sizes)) <= set(ends.tolist())


def test_lengths_that_make_no_batches_are_refused():
    order = ShuffledOrder(4, 1)
    for lengths in ([1, 2, 3], [1, 2, 3, -1], [1, 2, 3, 0.5], ["a"] * 4, [[1]] * 4):
        with pytest.raises(PlanError, match="lengths"):
            LengthBatches(order, lengths, 4, budget=9)
    with pytest.raises(PlanError, match="max_tokens=12 or more"):
        LengthBatches(order, [1, 12, 3, 4], 4, budget=9)
    with pytest.raises(PlanError, match="smaller group"):
        LengthBatches(order, [1, 2, 3, 4], 4, budget=9, group=8)
    with pytest.raises(PlanError, match="fewer ranks"):
        LengthSteps(4, 1, 5, batches=LengthBatches(order, [1, 2, 3, 4], 4, budget=9))


@settings(max_examples=15)
@given(
    *(st.integers(2, 25), st.integers(1, 6), seeds, st.integers(1, 4), st.integers(1, 2)),
    *(st.integers(4, 50), st.integers(0, 3), st.integers(0, 7)),
)
def test_batches_of_a_lane_keep_ranks_to_their_own_blocks_and_steps_equal(
    each, block, seed, world, per_rank, window, epoch, more
):
    lanes = world * per_rank
    size = each * lanes + more % lanes  # the law of ranks holds but for what makes no whole row
    blocks = BlockOrder(size, seed, block, 2, lanes)
    lengths = np.random.default_rng(block).integers(1, 30, size)
    order = LaneBatches(blocks, lengths, window, budget=60)
    samples, steps, p = one(order, epoch), LengthSteps(size, 1, world, batches=order).of(epoch), 0
    assert np.array_equal(np.sort(samples), np.arange(size))
    assert np.array_equal(order.position_of(epoch, samples), np.arange(size))
    lane_of = blocks.position_of(epoch, samples) % lanes
    batches, last = 0, order.windows.start(order.windows.count - 1)
    while step := steps.batches_at(p):
        assert len(step) == world
        for rank, (a, b) in enumerate(step):
            assert (b - a) * int(lengths[samples[a:b]].max()) <= 60 and b > a
            if size % lanes and p >= last:
                continue
            own = set(lane_of[a:b].tolist())
            assert len(own) == 1 and own.pop() % world == rank
            assert order.windows.of(a) == order.windows.of(step[0][0])
        p, batches = step[-1][1], batches + world
    assert size - p < world and (size % lanes or (p == size and batches == order.total(epoch)))
