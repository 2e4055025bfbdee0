"""Validation on a part of a partition: the same samples each time, or all of them in turns."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from penstock import ChunkedDataLoader, PlanError
from penstock.loaders.partition import validation_loader

sizes = st.integers(8, 200)
worlds = st.integers(1, 4)
batches = st.integers(2, 9)
chunks = st.integers(1, 12)


def ranks_of(size, batch, chunk, world, **options):
    return [
        validation_loader(torch.arange(size), batch, chunk, rank=rank, world_size=world, **options)
        for rank in range(world)
    ]


def delivered(loaders):
    """What one ``iter()`` gives on every rank, rank by rank, batch by batch."""
    return [[batch.tolist() for batch in loader] for loader in loaders]


def samples_of(ranks):
    return [sample for batches in ranks for batch in batches for sample in batch]


@given(size=sizes, batch=batches, chunk=chunks, world=worlds)
def test_the_subset_is_the_same_each_time_exact_and_without_repeats(size, batch, chunk, world):
    loaders = ranks_of(size, batch, chunk, world)
    first, again = delivered(loaders), delivered(loaders)
    assert first == again
    seen = samples_of(first)
    assert len(set(seen)) == len(seen) == min(size, chunk * batch * world)
    assert {len(batches) for batches in first} == {len(loaders[0])}
    assert all(batches == sorted(batches) for batches in first)  # as they lie in the dataset
    if chunk * batch * world < size:
        assert all(len(batch_) == batch for rank in first for batch_ in rank)
        assert len(loaders[0]) == chunk


@given(size=sizes, batch=batches, chunk=chunks, world=worlds)
def test_the_ranks_joined_are_the_subset_of_one_rank_with_the_whole_batch(
    size, batch, chunk, world
):
    together = samples_of(delivered(ranks_of(size, batch, chunk, world)))
    (alone,) = delivered(ranks_of(size, batch * world, chunk, 1))
    assert sorted(together) == samples_of([alone])


@given(size=sizes, batch=batches, chunk=chunks, world=worlds, rotations=st.integers(1, 2))
def test_a_cycle_covers_the_partition_once_per_rotation(size, batch, chunk, world, rotations):
    loaders = ranks_of(size, batch, chunk, world, cycle=True)
    total = loaders[0].total_chunks
    found = [[samples_of(delivered(loaders)) for _ in range(total)] for _ in range(rotations)]
    for rotation in found:
        assert sorted(sample for chunk_ in rotation for sample in chunk_) == list(range(size))
        assert rotation == found[0]  # chunk k has the same samples every time
    assert loaders[0].state_dict()["epoch"] == rotations


def test_the_subset_is_the_first_chunk_of_the_cycle():
    (fixed,) = delivered(ranks_of(100, 4, 3, 1))
    (turning,) = delivered(ranks_of(100, 4, 3, 1, cycle=True))
    assert samples_of([fixed]) == sorted(samples_of([turning]))


def test_another_seed_chooses_other_samples():
    chosen = {tuple(samples_of(delivered(ranks_of(500, 5, 4, 1, seed=s)))) for s in range(20)}
    assert len(chosen) == 20
    counts = np.bincount([sample for each in chosen for sample in each], minlength=500)
    assert counts.max() <= 5  # no sample is a favourite: 20 draws of 20 among 500


@pytest.mark.parametrize("chunk", [None, 25, 1000])
def test_no_chunk_size_or_a_large_one_is_the_whole_partition_in_order(chunk):
    (found,) = delivered(ranks_of(100, 4, chunk, 1, drop_last=True))
    assert samples_of([found]) == list(range(100))


def test_it_is_a_loader_that_tells_its_sizes_and_names_dataset_indices():
    loader = validation_loader(TensorDataset(torch.arange(100) * 10), 4, 3)
    assert isinstance(loader, ChunkedDataLoader) and loader.use_chunked
    assert (loader.chunk_size, loader.effective_chunk_size, len(loader)) == (3, 3, 3)
    assert (loader.current_chunk, loader.total_chunks, loader.remaining) == (0, 1, 3)
    for step, (values,) in enumerate(loader):
        assert (loader.samples_at(step) * 10).tolist() == values.tolist()


def test_another_batch_size_is_another_part_still_from_everywhere():
    loader = validation_loader(torch.arange(1000), 50, 4)
    loader.set_batch_size(5)
    seen = torch.cat(list(loader))
    assert len(seen) == 20 and seen.max() > 500


def test_workers_deliver_the_same_subset():
    alone = delivered([validation_loader(torch.arange(100), 4, 3)])
    with validation_loader(torch.arange(100), 4, 3, num_workers=2) as loader:
        assert delivered([loader]) == alone == delivered([loader])


def test_a_state_fits_on_another_number_of_ranks():
    loader = validation_loader(torch.arange(100), 4, 3, rank=0, world_size=1)
    other = validation_loader(torch.arange(100), 4, 3, rank=0, world_size=2)
    next(iter(loader))
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == 3


def test_what_cannot_be_is_refused():
    with pytest.raises(PlanError, match="chunk_size must be at least 1 batch, got 0"):
        validation_loader(torch.arange(10), 2, 0)
    with pytest.raises(PlanError, match="chunk_size must be at least 1 batch, got 0"):
        validation_loader(torch.arange(10), 2, 0, cycle=True)
    with pytest.raises(PlanError, match="chunk_size=3 needs an order"):
        validation_loader(torch.arange(10), 2, 3, sampler=[1, 2])
