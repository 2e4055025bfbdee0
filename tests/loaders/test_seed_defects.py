"""The defects of the original chunked loader, each as a test that it would fail.

The numbers are those of the list of defects. What concerns trainers, configuration and validation
in Lightning is tested here at the level of loaders, and again where those live.
"""

import json
from itertools import islice

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from penstock import ChunkedDataLoader, ChunkedSampler
from penstock.testing import same_batch


def numbers(loader):
    return [i for batch in loader for i in batch.tolist()]


def test_01_len_is_batches_and_not_samples():
    loader = ChunkedDataLoader(torch.arange(1000), batch_size=32, chunk_size=10)
    assert len(loader) == 10
    assert len(list(loader)) == 10
    assert loader.total_chunks == 4  # 32 batches in chunks of 10, not 1000 samples in chunks of 10
    assert [len(list(loader)) for _ in range(3)] == [10, 10, 2]


def test_02_chunks_are_not_all_in_the_same_order():
    sampler = ChunkedSampler(1000, 250)
    first, third = sampler.get_chunk_indices(0), sampler.get_chunk_indices(2)
    assert (third - 500).tolist() != first.tolist()  # which the original had, forever
    assert sampler.get_chunk_indices(4).tolist() != first.tolist()  # nor in the next pass
    assert sampler.get_chunk_indices(0).tolist() == first.tolist()  # though it is a pure function


def test_03_chunks_are_not_contiguous_stretches_of_the_dataset():
    sampler = ChunkedSampler(1000, 100)
    for k in range(10):
        chunk = sampler.get_chunk_indices(k)
        assert chunk.max() - chunk.min() > 700


def test_04_no_sample_comes_twice_in_a_pass():
    sampler = ChunkedSampler(1000, 300)  # the original drew 1200, indices 0-199 twice
    drawn = [i for k in range(sampler.total_chunks) for i in sampler.get_chunk_indices(k).tolist()]
    assert sorted(drawn) == list(range(1000))
    assert len(sampler.get_chunk_indices(3)) == 100


def test_05_a_chunk_larger_than_the_dataset_is_the_dataset():
    sampler = ChunkedSampler(100, 250)  # the original said 100, gave 250, up to index 149
    assert len(sampler) == len(list(sampler)) == 100
    assert sorted(sampler) == list(range(100))
    loader = ChunkedDataLoader(torch.arange(100), 4, chunk_size=250)
    assert len(loader) == 25 and sorted(numbers(loader)) == list(range(100))


@pytest.mark.parametrize(("drop_last", "lost"), [(False, 0), (True, 1000 % 32)])
def test_06_chunks_have_no_hole_in_their_coverage(drop_last, lost):
    loader = ChunkedDataLoader(torch.arange(1000), 32, chunk_size=7, drop_last=drop_last)
    seen = [i for _ in range(loader.total_chunks) for i in numbers(loader)]
    assert len(set(seen)) == len(seen) == 1000 - lost  # the original: 896, the same 104 never
    assert loader.state_dict()["epoch"] == 1


def test_06_what_drop_last_drops_is_another_in_every_pass():
    loader = ChunkedDataLoader(torch.arange(1000), 32, chunk_size=31, drop_last=True)
    dropped = [set(range(1000)) - set(numbers(loader)) for _ in range(40)]
    assert not set.intersection(*dropped)
    assert len(set.union(*dropped)) > 200


def test_07_drop_last_is_torchs_default():
    batches = list(ChunkedDataLoader(torch.arange(10), 4, chunk_size=5))
    assert [len(batch) for batch in batches] == [4, 4, 2]


def test_08_a_chunk_may_be_the_whole_partition_and_its_size_can_be_read():
    partition = torch.arange(37)
    whole = -(-len(partition) // 4)
    loader = ChunkedDataLoader(partition, 4, chunk_size=whole)
    assert (loader.chunk_size, loader.effective_chunk_size, loader.total_chunks) == (10, 10, 1)
    assert sorted(numbers(loader)) == list(range(37))


def test_09_a_limit_is_not_a_chunk_size():
    limited = ChunkedDataLoader(torch.arange(100), 4, limit_batches=5)
    assert not limited.use_chunked
    assert numbers(limited) == numbers(limited) == list(range(20))  # as before: the first ones
    assert ChunkedDataLoader(torch.arange(100), 4, 5).use_chunked


def test_10_a_chunk_size_beats_a_limit():
    loader = ChunkedDataLoader(torch.arange(100), 4, chunk_size=10, limit_batches=3)
    seen = [i for _ in range(loader.total_chunks) for i in numbers(loader)]
    assert sorted(seen) == list(range(100))  # no tail of a chunk is never seen


def test_11_iter_alone_does_not_advance():
    loader, control = (ChunkedDataLoader(torch.arange(100), 4, chunk_size=5) for _ in range(2))
    for _ in range(3):
        iter(loader)  # a progress bar, a sanity check, a second iterator
    assert loader.current_chunk == 0
    assert numbers(loader) == numbers(control)
    assert loader.current_chunk == 1


def test_11_a_sanity_check_of_a_validation_loader_changes_no_later_validation():
    checked, control = (
        ChunkedDataLoader(torch.arange(100), 4, chunk_size=5, evaluation=True) for _ in range(2)
    )
    list(islice(checked, 2))
    assert numbers(checked) == numbers(control)


def test_12_a_run_resumes_in_the_middle_of_a_chunk():
    loader = ChunkedDataLoader(torch.arange(100), 4, chunk_size=5)
    list(loader)
    head = list(islice(loader, 3))
    state = json.loads(json.dumps(loader.state_dict()))
    rest = list(loader) + list(loader)
    again = ChunkedDataLoader(torch.arange(100), 4, chunk_size=5)
    again.load_state_dict(state)
    assert again.current_chunk == 1 and len(head) == 3
    assert same_batch(list(again) + list(again), rest)


def test_13_validation_is_the_same_subset_every_time():
    loader = ChunkedDataLoader(torch.arange(100), 4, 5, evaluation=True, shuffle=True)
    first = numbers(loader)
    assert all(numbers(loader) == first for _ in range(3))
    assert first != sorted(first)  # a seeded subset of the whole, not the first samples


def test_14_ranks_share_the_samples_and_have_equally_many_batches():
    ranks = [
        ChunkedDataLoader(torch.arange(103), 4, chunk_size=5, rank=rank, world_size=3)
        for rank in range(3)
    ]
    seen = []
    for _ in range(ranks[0].total_chunks):
        lengths = {len(loader) for loader in ranks}
        batches = [list(loader) for loader in ranks]
        assert {len(mine) for mine in batches} == lengths and len(lengths) == 1
        seen += [i for mine in batches for batch in mine for i in batch.tolist()]
    assert sorted(seen) == list(range(103))


def test_14_ranks_are_taken_from_the_process_group_also_when_it_starts_later(tmp_path):
    loader = ChunkedDataLoader(torch.arange(100), 4, chunk_size=5)
    assert (loader.sampler.rank, loader.sampler.num_replicas) == (0, 1)
    store = f"file://{tmp_path}/group"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        assert (loader.sampler.rank, loader.sampler.num_replicas) == (0, 1)
        assert len(list(loader)) == 5
    finally:
        torch.distributed.destroy_process_group()


class Workers(Dataset):
    started = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if get_worker_info().id == 0:
            Workers.started += 1
        return torch.tensor(Workers.started)


def test_15_one_set_of_workers_serves_all_chunks():
    with ChunkedDataLoader(Workers(), 4, chunk_size=2, num_workers=1) as loader:
        counts = [int(batch.max()) for _ in range(2 * loader.total_chunks) for batch in loader]
    assert counts[-1] == 80  # a count in the worker's memory continues through every chunk


class Broken(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        raise LookupError(f"sample {index} is missing")


def test_16_errors_are_not_swallowed():
    with pytest.raises(LookupError, match=r"sample \d+ is missing"):
        list(ChunkedDataLoader(Broken(), 4, chunk_size=2))
