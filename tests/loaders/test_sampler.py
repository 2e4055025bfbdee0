"""ChunkedSampler: a sampler for torch's own loader, one chunk at a time."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Sampler

from penstock import ChunkedSampler, PlanError, StateError

sizes, chunk_sizes = st.integers(1, 300), st.integers(1, 400)
seeds = st.integers(0, 2**64 - 1)


@given(sizes, chunk_sizes, seeds, st.booleans(), st.integers(0, 9))
def test_chunks_are_disjoint_and_cover(size, chunk, seed, shuffle, epoch):
    sampler = ChunkedSampler(size, chunk, seed, shuffle=shuffle)
    sampler.set_epoch(epoch)
    parts = [sampler.get_chunk_indices(k) for k in range(sampler.total_chunks)]
    assert all(len(part) == chunk for part in parts[:-1]) and 1 <= len(parts[-1]) <= chunk
    assert sorted(np.concatenate(parts).tolist()) == list(range(size))


@given(sizes, chunk_sizes, seeds, st.lists(st.integers(0, 40), min_size=1, max_size=9))
def test_a_chunk_is_the_same_however_often_and_in_whatever_order_it_is_asked(
    size, chunk, seed, asked
):
    sampler = ChunkedSampler(size, chunk, seed)
    for k in asked:
        alone = ChunkedSampler(size, chunk, seed).get_chunk_indices(k)
        assert np.array_equal(sampler.get_chunk_indices(k), alone)
        assert np.array_equal(sampler.get_chunk_indices(k), alone)
    assert sampler.current_chunk == 0


@given(sizes, chunk_sizes, st.integers(0, 20))
def test_past_the_last_chunk_the_cycle_goes_on_in_the_next_epoch(size, chunk, k):
    sampler, later = ChunkedSampler(size, chunk), ChunkedSampler(size, chunk)
    epochs, within = divmod(k, sampler.total_chunks)
    later.set_epoch(epochs)
    assert np.array_equal(sampler.get_chunk_indices(k), later.get_chunk_indices(within))


@given(sizes, chunk_sizes, st.integers(0, 20))
def test_iterating_gives_the_current_chunk_and_never_moves_it(size, chunk, k):
    sampler = ChunkedSampler(size, chunk)
    sampler.set_chunk(k)
    for _ in range(2):
        assert list(sampler) == sampler.get_chunk_indices(k).tolist()
        assert len(sampler) == len(list(sampler))
    assert sampler.current_chunk == k


def test_it_is_a_sampler_of_torchs_and_works_in_a_stock_loader():
    sampler = ChunkedSampler(100, 30)
    assert isinstance(sampler, Sampler)
    loader = DataLoader(list(range(100)), 8, sampler=sampler)
    seen = []
    for k in range(sampler.total_chunks):
        sampler.set_chunk(k)
        assert len(loader) == len(list(loader))
        seen += [int(i) for batch in loader for i in batch]
    assert sorted(seen) == list(range(100))
    assert all(type(i) is int for i in sampler)


def test_its_attributes_are_those_of_the_seed():
    sampler = ChunkedSampler(100, 30)
    assert (sampler.dataset_size, sampler.chunk_size, sampler.seed) == (100, 30, 42)
    assert (sampler.current_chunk, sampler.total_chunks, sampler.epoch) == (0, 4, 0)


@given(sizes, chunk_sizes, st.integers(0, 20), st.integers(0, 5))
def test_a_state_goes_on_at_its_chunk(size, chunk, k, epoch):
    sampler, again = ChunkedSampler(size, chunk), ChunkedSampler(size, chunk)
    sampler.set_epoch(epoch)
    sampler.set_chunk(k)
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert list(again) == list(sampler)
    assert again.state_dict() == sampler.state_dict()


def test_what_does_not_fit_is_refused():
    with pytest.raises(PlanError, match="chunk_size must be at least 1 sample, got 0"):
        ChunkedSampler(10, 0)
    with pytest.raises(PlanError, match="cannot order 0 samples: an empty dataset"):
        ChunkedSampler(0, 5)
    sampler = ChunkedSampler(10, 3)
    for ask in (sampler.get_chunk_indices, sampler.set_chunk):
        with pytest.raises(PlanError, match="chunk_idx must be at least 0, got -1"):
            ask(-1)
    with pytest.raises(PlanError, match="epoch must be at least 0, got -1"):
        sampler.set_epoch(-1)
    for other in (ChunkedSampler(11, 3), ChunkedSampler(10, 3, seed=7)):
        with pytest.raises(StateError, match="the state belongs to"):
            sampler.load_state_dict(other.state_dict())
