"""Chunk sizes that change: exact on resume, and every sample once an epoch."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ChunkedDataLoader, PlanError, StateError, StreamLoader
from penstock.loaders.chunk_schedule import FIRST_BATCHES, TimedChunks, chunk_schedule

SCHEDULES = (
    {"start": 1, "end": 6, "over_chunks": 4},
    {"start": 5, "end": 2, "over_chunks": 2},
    [[0, 3], [2, 1], [5, 8]],
)


def loader_of(kind, n, batch, chunk, **options):
    if kind == "chunked":
        return ChunkedDataLoader(torch.arange(n), batch, chunk, **options)
    return StreamLoader(torch.arange(n), batch, chunk_size=chunk, drop_last=False, threads=1)


def chunks_of(loader, count):
    """The next chunks: the length that was promised, and the batches."""
    found = []
    for _ in range(count):
        promised = len(loader)
        assert promised == loader.remaining
        found.append([batch.tolist() for batch in loader])
        assert len(found[-1]) == promised
    return found


@settings(max_examples=30)
@given(
    st.sampled_from(["chunked", "stream"]),
    st.integers(5, 60),
    st.integers(1, 5),
    st.sampled_from(SCHEDULES),
)
def test_chunks_have_the_sizes_of_the_schedule_and_cover_every_epoch(kind, n, batch, schedule):
    size, steps = chunk_schedule(schedule).size, -(-n // batch)
    with loader_of(kind, n, batch, schedule) as loader:
        left, seen = steps, []
        for k, chunk in enumerate(chunks_of(loader, 9)):
            assert len(chunk) == min(size(k, None), left)
            seen += [sample for each in chunk for sample in each]
            left -= len(chunk)
            if not left:
                assert sorted(seen) == list(range(n))
                left, seen = steps, []


@settings(max_examples=30)
@given(
    st.sampled_from(["chunked", "stream"]),
    st.integers(20, 60),
    st.integers(2, 5),
    st.sampled_from(SCHEDULES),
    st.lists(st.integers(1, 5), min_size=2, max_size=20),
)
def test_a_chain_of_resumes_inside_a_schedule_is_exact(kind, n, batch, schedule, runs):
    def walk(loader, count):
        found = []
        while count:
            for each in loader:
                found.append((each.tolist(), len(loader) if loader.position.progress.done else 0))
                count -= 1
                if not count:
                    break
        return found

    with loader_of(kind, n, batch, schedule) as whole:
        expected = walk(whole, sum(runs))
        final = whole.state_dict()
    got, state = [], None
    for count in runs:
        with loader_of(kind, n, batch, schedule) as loader:
            if state is not None:
                loader.load_state_dict(state)
                assert loader.state_dict() == state
            got += walk(loader, count)
            state = json.loads(json.dumps(loader.state_dict()))
    assert got == expected and state == final


def test_a_duration_sets_the_size_from_the_time_of_the_batches_before():
    now = [0.0]
    timed = TimedChunks(60, clock=lambda: now[0])
    loader = ChunkedDataLoader(torch.arange(10_000), 10, timed)
    assert len(loader) == FIRST_BATCHES
    for _ in loader:
        now[0] += 0.5
    assert len(loader) == 120
    for count, _ in enumerate(loader, start=1):
        now[0] += 2.0
        if count == 7:
            break
    state = loader.state_dict()
    assert (state["chunks"], state["chunk_size"], state["chunk_done"]) == (1, 120, 7)
    other = ChunkedDataLoader(torch.arange(10_000), 10, "60 s")  # another clock, the same chunk
    other.load_state_dict(state)
    assert (len(other), other.remaining) == (120, 113)
    now[0] += 1000  # a validation, or a night: not the time of a batch
    for _ in loader:
        now[0] += 2.0
    assert len(loader) == 30


@pytest.mark.parametrize(
    "wrong", ["ten", "10", "0min", {"start": 1}, [], [[1, 5]], [[0, 5], [0, 6]], [[0, 0]], 0, True]
)
def test_a_chunk_size_that_means_nothing_is_refused(wrong):
    with pytest.raises(PlanError):
        ChunkedDataLoader(torch.arange(9), 3, wrong)
    with pytest.raises(PlanError):
        StreamLoader(torch.arange(9), 3, chunk_size=wrong)


def test_refusals_of_a_schedule():
    with pytest.raises(PlanError, match="evaluation loader cannot have chunks of about 60 s each"):
        ChunkedDataLoader(torch.arange(9), 3, "1min", evaluation=True)
    loader = ChunkedDataLoader(torch.arange(9), 3, SCHEDULES[0])
    with pytest.raises(PlanError, match="have no known positions: go to a step"):
        loader.set_chunk(2)
    state = loader.state_dict()
    del state["chunk_done"]
    with pytest.raises(StateError, match="has no chunk_done: it is damaged"):
        loader.load_state_dict(state)
    fixed = ChunkedDataLoader(torch.arange(9), 3, 2)  # chunk sizes are not part of the identity
    fixed.load_state_dict(loader.state_dict())
    loader.load_state_dict(fixed.state_dict())
    assert len(loader) == 1
