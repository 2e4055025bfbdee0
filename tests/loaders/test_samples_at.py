"""``samples_at`` and ``positions_at`` say what is delivered: in the loop, and after a resume."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import BlockOrder, ChunkedDataLoader, PlanError, StreamLoader
from penstock.order import Cursor, Steps


def make(samples=100, batch=10, chunk=None, **options):
    return ChunkedDataLoader(torch.arange(samples), batch, chunk, **{"shuffle": True, **options})


@pytest.mark.parametrize("chunk", [None, 3, 10])
def test_in_the_loop_it_answers_for_the_epoch_that_is_iterated(chunk):
    loader = make(chunk=chunk)
    for epoch in range(3):
        step = 0
        while loader.state_dict()["epoch"] == epoch:
            for batch in loader:
                assert np.array_equal(loader.samples_at(step), batch.numpy())
                assert np.array_equal(loader.samples_at(step, epoch), batch.numpy())
                step += 1


def test_after_the_loop_it_answers_for_the_next_epoch():
    loader = make()
    list(loader)
    assert np.array_equal(loader.samples_at(0), loader.samples_at(0, epoch=1))
    assert np.array_equal(loader.samples_at(0), next(iter(loader)).numpy())


def test_evaluation_is_always_epoch_0():
    loader = make(evaluation=True)
    loader.set_epoch(3)
    for step, batch in enumerate(loader):
        assert np.array_equal(loader.samples_at(step), batch.numpy())
    assert np.array_equal(loader.samples_at(0), loader.samples_at(0, epoch=0))


@st.composite
def resumes(draw):
    samples = draw(st.integers(6, 60))
    world = draw(st.integers(1, 4))
    batch = draw(st.integers(2, 9))
    drop_last = draw(st.booleans())
    if samples < (world * batch if drop_last else world):
        drop_last, world = False, 1
    position = draw(st.integers(0, samples - 1))
    chunk = draw(st.sampled_from([None, 1, 2, 5]))
    lanes = draw(st.sampled_from([None, 2, 3]))
    return samples, world, batch, drop_last, position, chunk, lanes


def ranks_of(samples, world, batch, drop_last, position, chunk, lanes):
    for rank in range(world):
        order = None if lanes is None else BlockOrder(samples, 42, 2, 2, lanes)
        options = {"rank": rank, "world_size": world, "drop_last": drop_last, "order": order}
        loader = make(samples, batch, chunk, **options)
        loader.load_state_dict(loader.state_dict() | {"epoch": 2, "position": position})
        yield loader


@settings(max_examples=15)
@given(resumes())
def test_from_any_state_on_it_equals_what_is_delivered(case):
    """On any number of ranks, with any batch size: to the end of the epoch and through the next."""
    world, batch, position = case[1], case[2], case[4]
    for loader in ranks_of(*case):
        start = loader.position.start
        for epoch in (start.epoch, start.epoch + 1):
            whole = world * batch
            step = -(-position // whole) if epoch == start.epoch and start.position else 0
            while loader.state_dict()["epoch"] == epoch:
                for delivered in loader:
                    assert np.array_equal(loader.samples_at(step), delivered.numpy())
                    order = loader.position.plan.order
                    positions = loader.positions_at(step)
                    assert np.array_equal(order.at(epoch, positions), delivered.numpy())
                    step += 1


@given(resumes())
def test_the_steps_of_a_resumed_epoch_cover_it_once_over_all_ranks(case):
    samples, world, batch, drop_last, position, _, _ = case
    seen = []
    for loader in ranks_of(*case):
        start = loader.position.start
        if start.epoch != 2:
            return  # nothing was left
        left = loader.position.plan.steps.steps_from(position)
        count = -(-position // (world * batch)) + left
        seen += [i for step in range(count) for i in loader.positions_at(step).tolist()]
        with pytest.raises(IndexError, match=rf"step must be in \[0, {count}\)"):
            loader.samples_at(count)
    assert len(seen) == len(set(seen))
    missing = samples - len(seen)
    assert 0 <= missing < (world * batch if drop_last else world)


@given(st.integers(10, 80), st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
def test_another_batch_size_moves_the_grid_to_the_position(samples, first, second, taken):
    loader = make(samples, first, chunk=100)
    batches = iter(loader)
    for _ in range(min(taken, len(loader))):
        next(batches)
    del batches
    position = loader.state_dict()["position"]
    loader.set_batch_size(second)
    step = -(-position // second)
    assert np.array_equal(loader.samples_at(step), loader.peek().numpy())
    for delivered in loader:
        assert np.array_equal(loader.samples_at(step), delivered.numpy())
        step += 1


def test_a_live_iteration_is_answered_for_in_its_own_batch_size():
    loader = make()
    for step, batch in enumerate(loader):
        loader.set_batch_size(7)
        assert np.array_equal(loader.samples_at(step), batch.numpy())


def test_seek_stays_on_the_plain_grid():
    loader = make(chunk=4)
    loader.load_state_dict(loader.state_dict() | {"position": 37})
    loader.seek(0, 5)
    assert loader.state_dict()["position"] == 50
    assert np.array_equal(loader.samples_at(5), next(iter(loader)).numpy())
    assert np.array_equal(loader.positions_at(0), np.arange(10))


def test_a_stream_answers_alike():
    with StreamLoader(np.arange(100), 10, block_samples=5, drop_last=False) as loader:
        loader.load_state_dict(loader.state_dict() | {"position": 37})
        for step, batch in enumerate(loader, start=4):
            assert np.array_equal(loader.samples_at(step), batch.numpy())
        for step, batch in enumerate(loader):
            assert np.array_equal(loader.samples_at(step), batch.numpy())


def test_a_block_of_measuring_leaves_the_grid_and_iterators_alone():
    loader = make()
    loader.load_state_dict(loader.state_dict() | {"position": 37})
    batches = iter(loader)
    next(batches)
    with loader.apart():
        loader.seek(3)
        other = iter(loader)
        next(other)
    assert np.array_equal(loader.samples_at(5), next(batches).numpy())
    with pytest.raises(RuntimeError, match=r"call iter\(loader\) again"):
        next(other)


@given(st.integers(1, 50), st.integers(1, 6), st.integers(1, 4), st.booleans(), st.integers(0, 49))
def test_spans_are_consecutive_and_end_where_steps_do(samples, batch, world, drop_last, origin):
    try:
        steps = Steps(samples, batch, world, drop_last=drop_last)
    except PlanError:
        return
    origin = min(origin, samples)
    count = steps.step_of(origin) + steps.steps_from(origin)
    spans = [steps.span(step, origin) for step in range(count)]
    assert all(stop == begin for (_, stop), (begin, _) in pairwise(spans))
    cursor = Cursor(0, origin)
    for begin, stop in spans[steps.step_of(origin) :]:
        assert (begin, stop) == (cursor.position, steps.stop(cursor.position))
        cursor = cursor.advance(steps)
