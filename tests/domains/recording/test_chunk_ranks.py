"""Chunks of a recording on several ranks: one plan, dealt in turn, resumed on any number."""

import json
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.domains.recording import RandomChunkLoader
from penstock.domains.recording.sampling import ChunkPlan
from penstock.errors import PlanError

TOTAL, CHUNK, SEED = 240, 10, 7
PLAN = ChunkPlan(TOTAL, CHUNK, SEED)


class Rank:
    """One rank's loader, and the spans of the chunks that it got."""

    def __init__(self, rank, world, *, state=None, **options):
        self.read = []
        options = {"seed": SEED, "rank": rank, "world_size": world, **options}
        self.loader = RandomChunkLoader(self.load, TOTAL, CHUNK, **options)
        if state is not None:
            self.loader.load_state_dict(json.loads(json.dumps(state)))

    def load(self, start, end):
        return np.arange(start, end)

    def get(self):
        """Whether there was a chunk."""
        chunk = self.loader.get_next_chunk()[0]
        if chunk is not None:
            self.read.append((int(chunk[0]), int(chunk[-1]) + 1))
        return chunk is not None


def run(world, count, *, chunks=None, state=None, **options):
    """Ranks that get ``chunks`` each (None: all) of an epoch of ``count``: what, and the state."""
    ranks = [Rank(rank, world, state=state, **options) for rank in range(world)]
    try:
        for rank in ranks:
            rank.loader.start_epoch(count // world)
        while chunks is None or chunks > 0:
            got = {rank.get() for rank in ranks}
            assert len(got) == 1  # all of them, or none: the ranks stay in step
            if got == {False}:
                break
            chunks = None if chunks is None else chunks - 1
        (state,) = {json.dumps(rank.loader.state_dict()) for rank in ranks}  # the same on all
    finally:
        for rank in ranks:
            rank.loader.close()
    turns = zip(*(rank.read for rank in ranks), strict=True)
    return [span for turn in turns for span in turn], json.loads(state)


@pytest.mark.parametrize("sampling", ["cover", "uniform"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_share_the_plan_of_one_rank(world, sampling):
    alone, _ = run(1, 24, sampling=sampling)
    shared, state = run(world, 24, sampling=sampling)
    assert shared == alone
    assert (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_pass_over_all_ranks_covers_the_recording_once(world):
    shared, _ = run(world, PLAN.per_pass)
    seen = np.concatenate([np.arange(*span) for span in shared])
    assert sorted(seen.tolist()) == list(range(TOTAL))


def test_one_rank_is_what_it_was_before_there_were_ranks():
    """Spans and state, as the version without ranks gave them."""
    read, state = run(1, 5, chunks=3)
    assert read == [(150, 160), (170, 180), (140, 150)] == PLAN.spans(0, 3)
    assert state == {
        "format": "penstock/1",
        "epoch": 0,
        "position": 3,
        "order": "cover",
        "samples": 240,
        "seed": 7,
        "chunk": 10,
        "align": 1,
        "overlap": 0,
    }


@settings(deadline=None)
@given(
    per=st.integers(1, 4),
    epoch=st.integers(0, 2),
    schedule=st.lists(st.tuples(st.sampled_from([1, 2, 3, 4]), st.integers(0, 5)), max_size=4),
    last=st.sampled_from([1, 2, 3, 4]),
)
def test_a_state_resumes_on_any_number_of_ranks(per, epoch, schedule, last):
    """Nothing is lost or repeated, but for a last rest that is smaller than the world."""
    count, seen, position = 12 * per, [], 0
    state = {**RandomChunkLoader(np.arange, TOTAL, CHUNK, seed=SEED).state_dict(), "epoch": epoch}
    for world, chunks in schedule:
        chunks = min(chunks, (count - position) // world - 1)
        if chunks > 0:  # not to the end of the epoch
            got, state = run(world, count, chunks=chunks, state=state)
            seen, position = seen + got, position + chunks * world
            assert (state["epoch"], state["position"]) == (epoch, position)
    got, state = run(last, count, state=state)
    dropped = (count - position) % last
    assert seen + got == PLAN.spans(epoch, count)[: count - dropped]
    assert (state["epoch"], state["position"]) == (epoch + 1, 0)


def test_what_ranks_cannot_share_is_dropped_with_a_warning(caplog):
    _, state = run(2, 12, chunks=4)
    with caplog.at_level(logging.WARNING, "penstock"):
        got, _ = run(3, 12, state=state)
    assert got == PLAN.spans(0, 12)[8:11]
    assert {r.getMessage() for r in caplog.records} == {
        "dropping the last 1 chunks of epoch 0: fewer than world_size=3"
    }
    caplog.clear()
    with caplog.at_level(logging.WARNING, "penstock"):
        run(4, 12, state=state)
    assert not caplog.records


def test_the_next_epoch_after_a_resume_is_shared_again():
    _, state = run(2, 24, chunks=4)
    rank = Rank(1, 3, state=state)
    with rank.loader as loader:
        loader.start_epoch(8)
        while rank.get():
            pass
        rank.read.clear()
        loader.start_epoch(8)
        while rank.get():
            pass
    assert rank.read == PLAN.spans(1, 24)[1::3]


def test_ranks_are_both_given_or_neither_and_in_range():
    for ranks in ({"rank": 0}, {"world_size": 2}, {"rank": 2, "world_size": 2}):
        with pytest.raises(PlanError, match="rank"):
            RandomChunkLoader(np.arange, TOTAL, CHUNK, seed=SEED, **ranks)


def test_numbers_of_numpy_are_ranks_and_describe_names_them():
    rank = Rank(np.int64(1), np.int64(2))
    with rank.loader as loader:
        loader.start_epoch(2)
        assert rank.get()
        assert json.loads(json.dumps(loader.state_dict()))["position"] == 2
        assert "rank 1 of 2" in loader.describe()
    assert "rank" not in Rank(0, 1).loader.describe()
