"""Each row of the table "Differences from torch's DataLoader" in docs/chunked.md, seen on both."""

import gc
import multiprocessing
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from penstock import ChunkedDataLoader, PlanError, StreamLoader
from penstock.loaders.base import StaleIteratorError
from penstock.testing import same_batch

PAGE = Path(__file__).parents[2] / "docs" / "chunked.md"
DATA = list(range(12))


def rows():
    table = PAGE.read_text().split("## Differences from torch's DataLoader")[1].split("##")[0]
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")][2:]


def refused(make, words):
    with pytest.raises(PlanError, match=words):
        make()
    return True


def numbers(batches):
    return [int(i) for batch in batches for i in batch]


def third_argument():
    assert numbers(DataLoader(DATA, 4, False)) == DATA
    refused(lambda: ChunkedDataLoader(DATA, 4, False), "pass shuffle=False by keyword")
    assert numbers(ChunkedDataLoader(DATA, 4, shuffle=False)) == DATA


def by_position():
    DataLoader(DATA, 4, None, range(4))
    with pytest.raises(TypeError, match="positional"):
        ChunkedDataLoader(DATA, 4, None, range(4))
    assert numbers(ChunkedDataLoader(DATA, 4, sampler=range(4))) == DATA[:4]


def shuffle():
    torch.manual_seed(1)
    theirs = DataLoader(DATA, 4, shuffle=True)
    first = numbers(theirs)
    assert numbers(theirs) != first
    ours = [ChunkedDataLoader(DATA, 4, shuffle=True) for _ in range(2)]
    epochs = [[numbers(loader) for _ in range(2)] for loader in ours]
    assert epochs[0] == epochs[1] and epochs[0][0] != epochs[0][1]
    assert numbers(ChunkedDataLoader(DATA, 4, shuffle=True, seed=7)) != epochs[0][0]


def worker_seeds():
    for kind, draws in ((DataLoader, True), (ChunkedDataLoader, False)):
        loader = kind(Drawing(), 4, num_workers=1)
        drawn = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            drawn.append(torch.cat(list(loader)))
            assert torch.equal(torch.get_rng_state(), before) is not draws
            if not draws:
                loader.close()
                loader.seek(0)
        assert torch.equal(*drawn) is not draws


class Drawing(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(1)


def ranks(tmp_path):
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        assert numbers(DataLoader(DATA, 4)) == numbers(ChunkedDataLoader(DATA, 4)) == DATA
    finally:
        torch.distributed.destroy_process_group()
    # what torch.distributed says with two ranks (test_ranks.py has real ones)
    shares = [ChunkedDataLoader(DATA, 4, rank=rank, world_size=2) for rank in range(2)]
    assert sorted(numbers(shares[0]) + numbers(shares[1])) == DATA
    assert numbers(ChunkedDataLoader(DATA, 4, rank=0, world_size=1)) == DATA


def workers_stay():
    for kind, stay in ((DataLoader, False), (ChunkedDataLoader, True)):
        loader = kind(DATA, 4, num_workers=1)
        list(loader)
        gc.collect()
        assert bool(multiprocessing.active_children()) is stay
        if stay:
            loader.close()
    with ChunkedDataLoader(DATA, 4, num_workers=1, persistent_workers=False) as loader:
        list(loader)
        assert not multiprocessing.active_children()


def replaced_for_persistent_workers():
    for kind, sees in ((DataLoader, False), (ChunkedDataLoader, True)):
        dataset = TensorDataset(torch.zeros(4))
        loader = kind(dataset, 4, num_workers=1, persistent_workers=True)
        list(loader)
        dataset.tensors = (torch.ones(4),)
        assert bool(next(iter(loader))[0].sum() == 4) is sees
        if sees:
            loader.close()
        del loader
        gc.collect()


class Bad(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 3:
            raise ValueError("bad")
        return index


def error_ends_a_loop():
    for kind, expected in ((DataLoader, [0, 1]), (ChunkedDataLoader, "bad")):
        loader = kind(Bad(), 2)
        with pytest.raises(ValueError, match="bad"):
            list(loader)
        try:
            found = next(iter(loader)).tolist()
        except ValueError as error:
            found = str(error)
        assert found == expected


def one_iterator():
    assert len(list(zip(*[DataLoader(DATA, 4)] * 2, strict=True))) == 3
    loader = ChunkedDataLoader(DATA, 4)
    with pytest.raises(StaleIteratorError, match="iterated again"):
        list(zip(loader, loader, strict=True))
    other = pickle.loads(pickle.dumps(loader))  # a copy has a position of its own
    loader.seek(0)
    other.seek(0)
    assert all(same_batch(*pair) for pair in zip(loader, other, strict=True))


class Ending(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 2:
            raise StopIteration
        return index


def stop_iteration():
    assert len(list(DataLoader(Ending(), 2))) == 1
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(ChunkedDataLoader(Ending(), 2))


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def iterable_in_full():
    assert sorted(numbers(DataLoader(Numbers(), 2, num_workers=2))) == sorted(2 * list(range(6)))
    refused(lambda: ChunkedDataLoader(Numbers(), 2, num_workers=2), "every sample 2 times")
    assert numbers(ChunkedDataLoader(Numbers(), 2, num_workers=1)) == list(range(6))


def characters():
    assert next(iter(DataLoader("ab", 2))) == ["a", "b"]
    for data in ("ab", Path("ab"), b"ab"):
        refused(lambda: ChunkedDataLoader(data, 2), "dataset must be a dataset")  # noqa: B023


class Negative(Dataset):
    def __len__(self):
        return -1  # noqa: PLE0303

    def __getitem__(self, index):
        return index


class Unsized(Dataset):
    def __getitem__(self, index):
        return index


def length():
    for dataset in (Negative(), Unsized()):
        loader = DataLoader(dataset, 2)
        with pytest.raises((TypeError, ValueError)):
            list(loader)
        with pytest.raises(ValueError, match="__len__"):
            ChunkedDataLoader(dataset, 2)


def numbers_and_flags():
    DataLoader(DATA, 4, shuffle=1, num_workers=True)
    refused(lambda: ChunkedDataLoader(DATA, 4, shuffle=1), "shuffle must be True or False")
    refused(lambda: ChunkedDataLoader(DATA, 4, num_workers=True), "num_workers must be an integer")


def shared_memory():
    data = TensorDataset(torch.arange(4))
    assert next(iter(DataLoader(data, 4, num_workers=1)))[0].is_shared()
    with ChunkedDataLoader(data, 4, num_workers=1) as loader:
        assert not next(iter(loader))[0].is_shared()
    gc.collect()


def pinning():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="pin_memory"):
        list(DataLoader(DATA, 4, pin_memory=True))
    assert numbers(ChunkedDataLoader(DATA, 4, pin_memory=True)) == DATA


SEEN = {
    "the third argument is `shuffle`": third_argument,
    "further arguments by position": by_position,
    "`shuffle=True` draws from torch's global generator": shuffle,
    "every `iter()` draws a seed for workers from the global generator": worker_seeds,
    "the whole dataset on every rank": ranks,
    "workers end with each epoch": workers_stay,
    "persistent workers never see what is replaced": replaced_for_persistent_workers,
    "after an error that ended a loop, `iter()` begins an epoch": error_ends_a_loop,
    "several iterators of one loader at a time": one_iterator,
    "`StopIteration` raised by a dataset ends the epoch": stop_iteration,
    "an `IterableDataset` is read in full by each worker and rank": iterable_in_full,
    "a string, a path or bytes is read as a dataset of characters": characters,
    "a dataset without a length, or with a negative one, fails when iterated": length,
    "`True` is accepted as a number, and `1` as a flag": numbers_and_flags,
    "tensors from workers are in shared memory": shared_memory,
    "`pin_memory=True` without an accelerator warns": pinning,
}


@pytest.mark.parametrize("row", SEEN)
def test_each_difference_is_as_the_table_says(row, tmp_path):
    check = SEEN[row]
    check(tmp_path) if check is ranks else check()


def test_every_row_of_the_table_has_a_test():
    assert rows() == list(SEEN)
    assert re.search("differences-from-torchs-dataloader", PAGE.read_text())


def test_streams_are_advised_where_a_path_is_given(tmp_path):
    with pytest.raises(PlanError, match="StreamLoader"):
        ChunkedDataLoader(str(tmp_path), 2)
    assert StreamLoader is not None
