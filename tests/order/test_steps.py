"""Steps: each position once over all ranks, no rank empty, chunks that are what they say."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock import PlanError
from penstock.order import Steps, Topology

small = st.integers(1, 700)
batches = st.integers(1, 20)
worlds = st.integers(1, 8)
lane_counts = st.integers(1, 12)


def possible(n, batch, world, drop):
    return n >= batch * world if drop else n >= world and not (batch == 1 and n % world)


def walk(steps, p=0):
    while (stop := steps.stop(p)) > p:
        yield p, stop
        p = stop


@given(small, batches, worlds, lane_counts, st.booleans(), st.integers(0, 700))
def test_each_position_once_over_all_ranks_and_no_rank_empty(n, batch, world, lanes, drop, at):
    assume(possible(n, batch, world, drop))
    steps = Steps(n, batch, world, lanes, drop)
    seen = []
    for i, (p, stop) in enumerate(walk(steps)):
        parts = [steps.rank_positions(p, rank) for rank in range(world)]
        assert all(1 <= len(part) <= batch for part in parts)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        joined, want = np.concatenate(parts), np.arange(p, stop)
        assert np.array_equal(joined, want[np.lexsort((want, want % lanes))])  # one, any world
        assert steps.start(i) == p and steps.step_of(p) == i
        assert steps.steps_from(p) == steps.count - i
        seen.append(joined)
    whole = n if not drop else n // (batch * world) * (batch * world)
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(whole))
    assert len(list(walk(steps, at % n))) == steps.steps_from(at % n)  # off the grid, too


@given(small, batches, worlds, lane_counts, st.booleans(), st.integers(0, 700))
def test_indices_in_a_step_are_the_inverse_of_rank_positions(n, batch, world, lanes, drop, at):
    assume(possible(n, batch, world, drop))
    steps = Steps(n, batch, world, lanes, drop)
    for p, stop in walk(steps, at % n):
        joined = np.concatenate([steps.rank_positions(p, rank) for rank in range(world)])
        assert np.array_equal(steps.indices_in_step(p, joined, stop), np.arange(stop - p))
        m = stop - p
        for rank in range(world):
            indices = steps.indices_in_step(p, steps.rank_positions(p, rank), stop)
            assert np.array_equal(indices, np.arange(rank * m // world, (rank + 1) * m // world))


@given(small, st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_a_rank_keeps_to_its_lanes(n, per_lane, world, each):
    lanes, batch = world * each, each * per_lane
    assume(n >= batch * world)
    steps = Steps(n, batch, world, lanes, drop_last=True)
    for p, _ in walk(steps, n % 7):
        for rank in range(world):
            assert set(steps.rank_positions(p, rank) % lanes) <= set(steps.lanes_of(rank))


@given(
    small,
    batches,
    worlds,
    st.booleans(),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_chunks_cover_the_epoch_and_their_length_stays(n, batch, world, drop, chunk, limit):
    assume(possible(n, batch, world, drop))
    steps = Steps(n, batch, world, 1, drop, limit=limit, chunk=chunk)
    spans = list(walk(steps))
    assert len(spans) == steps.count <= (steps.count if limit is None else limit)
    chunks = {}
    for i, (p, _) in enumerate(spans):
        chunks.setdefault(steps.chunk_of(p), []).append(p)
        assert steps.left_in_chunk(p) == min(chunk - i % chunk, steps.count - i)
    assert list(chunks) == list(range(steps.total_chunks))
    for number, begins in chunks.items():
        last = number == steps.total_chunks - 1
        assert len(begins) == chunk or last
        assert {steps.chunk_length(p) for p in begins} == {len(begins)}


@given(
    small,
    st.integers(2, 20),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(2, 20),
    st.integers(1, 5),
    st.integers(0, 20),
)
def test_after_another_global_batch_only_one_chunk_differs(n, b1, w1, chunk, b2, w2, k):
    assume(possible(n, b1, w1, False) and possible(n, b2, w2, False))
    one, two = (Steps(n, b, w, 1, False, chunk=chunk) for b, w in ((b1, w1), (b2, w2)))
    p = 0
    for _ in range(k):
        p = one.stop(p)
    lengths, origin = [], p
    while left := two.left_in_chunk(p, origin):
        total = two.chunk_length(p, origin)
        assert 1 <= left <= total <= chunk
        begins = [p]
        for _ in range(left):
            begins.append(two.stop(begins[-1]))
        for rest, p in zip(range(left, 0, -1), begins, strict=False):
            assert two.left_in_chunk(p, origin) == rest
            assert two.chunk_length(p, origin) == total
        p = begins[-1]
        lengths.append(left)
    assert all(length == chunk for length in lengths[1:-1])


@given(small, batches, worlds, st.booleans())
def test_step_starts_grow_and_an_unknown_step_is_refused(n, batch, world, drop):
    assume(possible(n, batch, world, drop))
    steps = Steps(n, batch, world, 1, drop)
    starts = [steps.start(i) for i in range(steps.count)]
    assert starts[0] == 0 and all(a < b for a, b in pairwise(starts))
    for wrong in (-1, steps.count):
        with pytest.raises(IndexError, match=r"step must be in \[0, \d+\), got"):
            steps.start(wrong)


@given(st.integers(1, 2**62), st.integers(1, 2**20), st.integers(1, 2**12), st.data())
def test_steps_of_any_size_are_sought_in_no_time(n, batch, world, data):
    assume(n >= batch * world)
    steps = Steps(n, batch, world, world, drop_last=True)
    step = data.draw(st.integers(0, steps.count - 1))
    p = steps.start(step)
    assert steps.step_of(p) == step and steps.steps_from(p) == steps.count - step
    assert steps.stop(p) == p + batch * world <= n


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": 0, "batch": 1}, "size must be at least 1 sample, got 0"),
        ({"size": 9, "batch": 0}, "batch_size must be at least 1 sample, got 0"),
        ({"size": 9, "batch": 1, "world": 0}, "world_size must be at least 1 rank, got 0"),
        ({"size": 9, "batch": 1, "lanes": 0}, "lanes must be at least 1 lane, got 0"),
        ({"size": 9, "batch": 1, "chunk": 0}, "chunk_size must be at least 1 batch, got 0"),
        ({"size": 9, "batch": 1, "limit": -1}, "limit_batches must be at least 0, got -1"),
        (
            {"size": 3, "batch": 8, "world": 4, "drop_last": False},
            "3 samples for 4 ranks",
        ),
        (
            {"size": 5, "batch": 1, "world": 2, "drop_last": False},
            "batches of 1 cannot split 5",
        ),
        ({"size": 31, "batch": 8, "world": 4}, "31 samples do not fill a step of 32"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(given, words):
    with pytest.raises(PlanError, match=words) as refused:
        Steps(**given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_that_cannot_be_is_refused(rank, world):
    with pytest.raises(PlanError, match=r"rank must be|world_size must be at least 1"):
        Topology(rank, world)
