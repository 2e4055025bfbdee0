"""Skips and their inverse: what is left out never comes, all else does, on any ranks."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from penstock.order import (
    BlockOrder,
    Cursor,
    Occurrence,
    Plan,
    SequentialOrder,
    ShuffledOrder,
    Skips,
    Steps,
)
from penstock.order.state import cursor_of, skips_of, to_state

seeds = st.integers(0, 2**64 - 1)
ranges = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 80), st.integers(0, 60)).map(
        lambda r: (r[0], r[1], r[1] + r[2])
    ),
    max_size=5,
)


def possible(n, batch, world, drop):
    return n >= batch * world if drop else n >= world and not (batch == 1 and n % world)


def plan_of(order, batch, world=1, drop=True, chunk=None, skips=(), rank=0):
    steps = Steps(order.size, batch, world, order.lanes, drop, chunk=chunk)
    return Plan(order, steps, rank).skipping(Skips(skips))


class Repeating:
    """An order in which sample 0 comes in every second place, and epochs differ in size."""

    kind, seed, lanes = "repeating", 1, 1

    def __init__(self, size):
        self.samples, self.size = size, 2 * size

    def places(self, epoch):
        return self.size - epoch

    def at(self, epoch, positions):
        return np.where(positions % 2, 0, positions // 2)

    def position_of(self, epoch, samples):
        return samples * 2

    def positions_of(self, epoch, sample):
        odd = range(1, self.places(epoch), 2) if sample == 0 else ()
        return sorted([p for p in [2 * sample] if p < self.places(epoch)] + list(odd))

    def passes(self, epoch, positions):
        return np.where(positions % 2, positions // 2 + 1, 0) + epoch * self.size

    def identity(self):
        return {"order": self.kind, "samples": self.samples, "places": self.size, "seed": 1}


def order_of(kind, size, seed, lanes):
    if kind == 0:
        return ShuffledOrder(size, seed)
    return BlockOrder(size, seed, 5, 2, lanes) if kind == 1 else Repeating(size)


@given(ranges, st.integers(1, 120))
def test_kept_positions_are_counted_and_found(ranges, size):
    skips = Skips(ranges)
    for epoch in range(4):
        out = {p for e, a, b in ranges if e == epoch for p in range(a, b)}
        kept = [p for p in range(size) if p not in out]
        assert skips.size(epoch, size) == len(kept)
        assert skips.original(epoch, np.arange(len(kept))).tolist() == kept
        before = [sum(q < p for q in kept) for p in range(size)]
        assert skips.kept(epoch, np.arange(size)).tolist() == before
        left_out = skips.left_out(epoch, np.arange(size))
        assert (left_out == np.array([p in out for p in range(size)])).all()
    assert skips.union(ranges).ranges == skips.ranges  # again changes nothing
    state = to_state(Cursor(1, 0), SequentialOrder(999), skips=skips)
    assert skips_of(json.loads(json.dumps(state))).ranges == skips.ranges


@given(ranges, st.integers(20, 90), seeds, st.integers(0, 2), st.integers(1, 4), st.data())
def test_what_is_skipped_never_comes_and_all_else_does_once_over_requeues(
    ranges, size, seed, kind, lanes, data
):
    order, skips = order_of(kind, size, seed, lanes), Skips(ranges)
    got = {0: [], 1: [], 2: []}
    state = to_state(Cursor(), order, skips=skips)
    while state["epoch"] < 3:
        batch, world = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 4))
        plans = [plan_of(order, batch, world, False, None, ranges, rank) for rank in range(world)]
        steps = plans[0].steps
        cursor = skips.to_kept(cursor_of(state)).normal(steps)
        for _ in range(data.draw(st.integers(1, 9))):
            if cursor.epoch > 2:
                break
            positions = [plan.positions(cursor) for plan in plans]
            assert all(len(each) for each in positions)  # every rank has as many steps
            got[cursor.epoch] += np.concatenate(positions).tolist()
            cursor = cursor.advance(steps)
        state = json.loads(json.dumps(to_state(cursor, order, skips=skips)))
    for epoch in range(3):
        places = order.size - epoch if kind == 2 else order.size
        kept = [
            p for p in range(places) if not any(e == epoch and a <= p < b for e, a, b in ranges)
        ]
        assert len(set(got[epoch])) == len(got[epoch]) and set(got[epoch]) <= set(kept)
        assert len(kept) - len(got[epoch]) < 4  # fewer than ranks, after a change of them


@given(
    ranges,
    st.integers(20, 90),
    st.integers(2, 6),
    st.integers(1, 3),
    st.integers(1, 6),
    st.booleans(),
)
def test_length_and_the_rest_are_true_and_no_chunk_is_empty(
    ranges, size, batch, world, chunk, drop
):
    assume(possible(size, batch, world, drop))
    plan = plan_of(SequentialOrder(size), batch, world, drop, chunk, ranges)
    cursor = Cursor().normal(plan.steps)
    while cursor.epoch < 4:
        promised, epoch = plan.left_in_chunk(cursor), cursor.epoch
        assert 1 <= promised <= chunk
        for _ in range(promised):
            assert cursor.epoch == epoch
            assert plan.steps.of(epoch).chunk_length(cursor.position) == promised
            cursor = cursor.advance(plan.steps)


@settings(max_examples=20)
@given(
    st.integers(40, 200),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 9),
    seeds,
)
def test_skipped_steps_leave_the_others_as_they_were(size, per, world, first, count, seed):
    batch, order = per * 2, BlockOrder(size, seed, 4, 2, lanes=world)
    assume(size >= batch * world)
    plain = [plan_of(order, batch, world, rank=rank) for rank in range(world)]
    whole, count_all = plain[0].steps.whole, plain[0].steps.count
    hole = [(0, first * whole, min(size, (first + count) * whole))]
    skipping = [plan.skipping(Skips(hole)) for plan in plain]
    kept = [i for i in range(count_all) if not first <= i < first + count]
    cursor = Cursor()
    for i in kept:  # batch by batch, rank by rank
        assert skipping[0].skips.to_order(cursor) == Cursor(0, i * whole)
        for one, other in zip(skipping, plain, strict=True):
            assert np.array_equal(one.samples(cursor), other.samples(Cursor(0, i * whole)))
        cursor = cursor.advance(skipping[0].steps)
    assert cursor == Cursor(1)


def test_a_skip_past_the_end_of_an_epoch_is_one_to_its_end():
    order = SequentialOrder(20)
    state = to_state(Cursor(), order, skips=Skips([(0, 0, 21)]))
    assert cursor_of(state) == Cursor(0, 20)


def test_whole_epochs_can_be_skipped():
    plan = plan_of(ShuffledOrder(100, 1), 10, skips=[(1, 0, 100), (2, 0, 95)])
    assert Cursor(0, 90).advance(plan.steps) == Cursor(3)
    assert [batch.after for batch in plan.walk(Cursor(0, 80), 3)] == [
        Cursor(0, 90),
        Cursor(3),
        Cursor(3, 10),
    ]


# -- the inverse


@settings(max_examples=20)
@given(
    st.integers(0, 2),
    st.integers(12, 40),
    seeds,
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(1, 4),
    st.booleans(),
    ranges,
)
def test_when_is_where_a_sample_is_delivered(kind, size, seed, batch, world, lanes, drop, ranges):
    assume(possible(size, batch, world, drop))
    order = order_of(kind, size, seed, lanes)
    plans = [plan_of(order, batch, world, drop, None, ranges, rank) for rank in range(world)]
    truth, step, cursor = {}, Counter(), Cursor().normal(plans[0].steps)
    while cursor.epoch < 3:
        for rank, plan in enumerate(plans):
            for row, sample in enumerate(plan.samples(cursor).tolist()):
                place = cursor.epoch, step[cursor.epoch], rank, row
                truth.setdefault(sample, set()).add(place)
        step[cursor.epoch] += 1
        cursor = cursor.advance(plans[0].steps)
    times, samples = 0, [order.at(epoch, np.arange(order.size)) for epoch in range(3)]
    for sample in range(size):
        found = [each for epoch in range(3) for each in plans[0].when(epoch, sample)]
        delivered = {(o.epoch, o.step, o.rank, o.row) for o in found if o.step is not None}
        assert delivered == truth.get(sample, set())
        assert all(samples[o.epoch][o.position] == sample for o in found)
        times += len(found)
    assert times == 3 * order.size - (3 if kind == 2 else 0)  # skipped or dropped ones, too


@example(11, 3, 2, 1, False, 0)  # a last step that the ranks share unequally
@given(
    st.integers(10, 90),
    st.integers(2, 5),
    st.integers(1, 4),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 60),
)
def test_a_position_is_located_in_steps_from_any_origin(size, batch, world, lanes, drop, origin):
    assume(possible(size, batch, world, drop) and origin < size)
    steps = Steps(size, batch, world, lanes, drop)
    found = set()
    for step in range(steps.step_of(origin) + steps.steps_from(origin)):
        begin, stop = steps.span(step, origin)
        for rank in range(world):
            for row, at in enumerate(steps.rank_positions(begin, rank, stop).tolist()):
                assert steps.locate(at, origin) == (step, rank, row)
                found.add(at)
    assert all(steps.locate(at, origin) is None for at in set(range(size)) - found)


def test_a_dropped_sample_has_a_position_but_no_step():
    plan = plan_of(SequentialOrder(10), 4, skips=[(0, 2, 3)])
    assert plan.when(0, 2) == [Occurrence(0, 2)] and plan.when(0, 9) == [Occurrence(0, 9)]
    assert plan.when(0, 3) == [Occurrence(0, 3, step=0, rank=0, row=2)]


@pytest.mark.parametrize("size", [1, 10**12])
def test_an_inverse_needs_no_search(size):
    order = ShuffledOrder(size, 7)
    plan = plan_of(order, 1)
    (found,) = plan.when(5, size // 2)
    assert plan.samples(Cursor(5, found.step)).tolist() == [size // 2]
