"""Cursor and plan: resuming is seeking, on any sequence of topologies."""

import json

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.order import (
    BlockOrder,
    Cursor,
    Plan,
    SequentialOrder,
    ShuffledOrder,
    Steps,
)
from penstock.order.state import check_identity, cursor_of, to_state

seeds = st.integers(0, 2**64 - 1)
small = st.integers(1, 250)
geometry = st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(1, 9))


def possible(n, batch, world, drop):
    return n >= batch * world if drop else n >= world and not (batch == 1 and n % world)


@st.composite
def orders(draw):
    n, seed = draw(small), draw(seeds)
    kind = draw(st.sampled_from(["sequential", "shuffled", "block"]))
    if kind == "block":
        return BlockOrder(n, seed, *draw(geometry))
    return (SequentialOrder if kind == "sequential" else ShuffledOrder)(n, seed)


@settings(max_examples=25)
@given(
    orders(),
    st.integers(1, 20),
    st.integers(1, 6),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_each_sample_exactly_once_an_epoch_over_all_ranks(order, batch, world, drop, chunk):
    assume(possible(order.size, batch, world, drop))
    steps = Steps(order.size, batch, world, order.lanes, drop, chunk=chunk)
    for epoch in (0, 3):
        seen, lengths = [], set()
        for rank in range(world):
            walked = list(Plan(order, steps, rank).walk(Cursor(epoch), steps.count))
            lengths.add(len(walked))
            assert walked[-1].after == Cursor(epoch + 1)
            seen += [planned.samples for planned in walked]
        assert lengths == {steps.count}  # every rank has as many batches
        counts = np.bincount(np.concatenate(seen), minlength=order.size)
        dropped = order.size % steps.whole if drop else 0
        assert counts.max() == 1 and (counts == 0).sum() == dropped


@given(orders(), st.integers(1, 20), st.integers(1, 6), st.booleans(), st.integers(0, 500))
def test_a_walk_in_strides_is_the_batches_one_by_one(order, batch, world, drop, at):
    assume(possible(order.size, batch, world, drop))
    steps = Steps(order.size, batch, world, order.lanes, drop)
    plan = Plan(order, steps, rank=world - 1)
    cursor = Cursor(2, at % order.size).normal(steps)
    for planned in plan.walk(cursor, steps=min(steps.count, 40) + 9):
        assert planned.epoch == cursor.epoch
        assert np.array_equal(planned.samples, plan.samples(cursor))
        cursor = cursor.advance(steps)
        assert planned.after == cursor and steps.steps_from(cursor.position)


@settings(max_examples=25)
@given(orders(), st.booleans(), st.data())
def test_resuming_on_any_sequence_of_topologies_reads_exactly_the_rest(order, drop, data):
    n, cursor, seen = order.size, Cursor(), []
    for _ in range(60):
        batch, world = data.draw(st.integers(2, 9)), data.draw(st.integers(1, 5))
        if not possible(n, batch, world, drop):
            continue
        chunk = data.draw(st.sampled_from([None, 1, 3]))
        steps = Steps(n, batch, world, order.lanes, drop, chunk=chunk)
        given_up = n - cursor.position < world
        state = json.loads(json.dumps(to_state(cursor, order)))
        check_identity(state, order)
        cursor = cursor_of(state).normal(steps)
        for _ in range(data.draw(st.integers(1, 5))):
            if cursor.epoch:
                break
            got = [Plan(order, steps, rank).samples(cursor) for rank in range(world)]
            assert sum(map(len, got)) == steps.stop(cursor.position) - cursor.position
            seen += np.concatenate(got).tolist()
            cursor = cursor.advance(steps)
        if cursor.epoch:
            break
    assert len(seen) == len(set(seen))
    if cursor.epoch:  # given up: less than one step of the last ranks
        bound = batch * world if drop else max(world, 2) if given_up else 1
        assert n - len(seen) < bound


@given(orders(), st.integers(2, 20), st.sampled_from([1, 2, 3, 4, 6, 12]), st.booleans())
def test_the_ranks_batches_joined_are_one_sequence_for_every_world(order, each, world, drop):
    whole = 12 * each
    assume(order.size >= whole)
    joined = {}
    for ranks in (1, world):
        steps = Steps(order.size, whole // ranks, ranks, order.lanes, drop)
        count = order.size // whole - 1  # but for the end, which is spread over the ranks
        walks = [list(Plan(order, steps, rank).walk(Cursor(), count)) for rank in range(ranks)]
        joined[ranks] = [
            np.concatenate([walk[i].samples for walk in walks]).tolist() for i in range(count)
        ]
    assert joined[1] == joined[world]


def test_set_epoch_of_the_current_epoch_keeps_a_resumed_position():
    assert Cursor(3, 480).set_epoch(3) == Cursor(3, 480)
    assert Cursor(3, 480).set_epoch(4) == Cursor(4, 0)


def test_a_chunk_is_a_shuffle_of_the_whole_not_of_neighbours():
    n, batch, chunk = 20_000, 10, 20
    steps = Steps(n, batch, chunk=chunk)
    plan = Plan(ShuffledOrder(n, 4), steps)
    for number in range(0, steps.total_chunks, 10):
        walked = plan.walk(Cursor(0, number * chunk * batch), chunk)
        samples = np.concatenate([planned.samples for planned in walked])
        cells = np.bincount(samples * 10 // n, minlength=10)  # 200 samples over ten parts
        assert cells.min() > 5 and cells.max() < 40
