"""Without a chunk size it *is* torch's loader: what only torch knows passes through, untouched."""

import multiprocessing

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from penstock import ChunkedDataLoader, StateError
from penstock.testing import same_batch

DATA = [float(i) for i in range(23)]


class Numbers(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, 23, step))


class Sized(Numbers):
    def __len__(self):
        return 23


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


CASES = {
    "plain": lambda: (DATA, {"batch_size": 4}),
    "drop_last": lambda: (DATA, {"batch_size": 4, "drop_last": True}),
    "sampler": lambda: (DATA, {"batch_size": 4, "sampler": [5, 3, 1, 22, 0]}),
    "random sampler": lambda: (
        DATA,
        {"batch_size": 4, "sampler": RandomSampler(DATA, generator=seeded())},
    ),
    "weighted sampler": lambda: (
        DATA,
        {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * 23, 9, generator=seeded())},
    ),
    "batch_sampler": lambda: (
        DATA,
        {"batch_sampler": BatchSampler(SequentialSampler(DATA), 5, drop_last=True)},
    ),
    "generator": lambda: (DATA, {"batch_size": 4, "generator": seeded(), "shuffle": True}),
    "iterable": lambda: (Numbers(), {"batch_size": 4}),
    "iterable with a length": lambda: (Sized(), {"batch_size": 4}),
    "no batches": lambda: (DATA, {"batch_size": None}),
    "no batches, shuffled": lambda: (
        DATA,
        {"batch_size": None, "shuffle": True, "generator": seeded()},
    ),
    "empty": lambda: ([], {"batch_size": 4}),
    "collate": lambda: (DATA, {"batch_size": 4, "collate_fn": tuple}),
}


@pytest.mark.parametrize("name", CASES)
def test_it_behaves_exactly_as_torchs_loader(name):
    loaders = []
    for kind in (DataLoader, ChunkedDataLoader):
        dataset, options = CASES[name]()
        if kind is ChunkedDataLoader:
            options.setdefault("batch_size", None)
        torch.manual_seed(5)
        loaders.append(kind(dataset, **options))
    theirs, ours = loaders
    assert isinstance(ours, DataLoader)
    for _ in range(3):
        assert same_batch(list(ours), list(theirs))
    for attribute in ("batch_size", "drop_last", "num_workers", "pin_memory", "timeout"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
    if name != "iterable":
        assert len(ours) == len(theirs)
        assert ours.remaining == len(ours)
    else:
        with pytest.raises(TypeError):
            len(ours)


@pytest.mark.parametrize("name", ["iterable", "sampler", "generator"])
def test_with_workers_too(name):
    results = []
    for kind in (DataLoader, ChunkedDataLoader):
        dataset, options = CASES[name]()
        loader = kind(dataset, num_workers=2, **options)
        results.append([batch.tolist() for batch in loader])
    assert results[0] == results[1]


def test_persistent_workers_of_torchs_own_end_with_close():
    options = {"num_workers": 1, "persistent_workers": True}
    with ChunkedDataLoader(Numbers(), 4, **options) as loader:
        assert len(list(loader)) == 6
        assert multiprocessing.active_children()
    assert not multiprocessing.active_children()


def test_unordered_delivery_passes_through():
    loader = ChunkedDataLoader(DATA, 4, num_workers=1, in_order=False)
    assert sorted(i for batch in loader for i in batch.tolist()) == DATA


@pytest.mark.parametrize(
    ("name", "limit", "batches"),
    [
        ("sampler", 1, 1),
        ("generator", 0.5, 3),
        ("iterable", 2, 2),
        ("iterable with a length", 0.5, 3),
        ("iterable", 99, 6),
    ],
)
def test_limit_batches_holds_for_torchs_own_order(name, limit, batches):
    dataset, options = CASES[name]()
    loader = ChunkedDataLoader(dataset, limit_batches=limit, **options)
    assert len(list(loader)) == len(list(loader)) == batches
    if name != "iterable":
        assert len(loader) == loader.remaining == batches


def test_set_epoch_reaches_a_sampler_that_has_one():
    sampler = torch.utils.data.DistributedSampler(DATA, num_replicas=2, rank=0)
    loader = ChunkedDataLoader(DATA, 4, sampler=sampler)
    loader.set_epoch(3)
    assert sampler.epoch == 3
    ChunkedDataLoader(DATA, 4, sampler=[1, 2]).set_epoch(3)  # nothing to reach


@pytest.mark.parametrize(
    "ask",
    [
        lambda loader: loader.state_dict(),
        lambda loader: loader.load_state_dict({}),
        lambda loader: loader.seek(0),
        lambda loader: loader.set_batch_size(3),
        lambda loader: loader.samples_at(0),
        lambda loader: loader.set_chunk(0),
    ],
)
def test_a_state_of_torchs_own_order_is_refused_with_the_reason(ask):
    loader = ChunkedDataLoader(DATA, 4, sampler=[1, 2])
    with pytest.raises(
        StateError, match="this loader has no state: with sampler, torch decides the order"
    ):
        ask(loader)
    assert "because of sampler" in loader.describe()


class Counting(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index


def test_unchunked_and_without_torchs_own_it_has_torchs_order_and_a_state():
    for shuffle in (None, False):
        loader = ChunkedDataLoader(Counting(), 4, shuffle=shuffle)
        assert same_batch(list(loader), list(DataLoader(Counting(), 4)))
        assert loader.state_dict()["epoch"] == 1
        assert len(loader) == 3 and loader.effective_chunk_size is None


def test_describe_is_one_readable_page():
    texts = {
        "one gather a batch": ChunkedDataLoader(torch.arange(9), 2),
        "sample by sample": ChunkedDataLoader(Counting(), 2, 3),
        "2 worker processes": ChunkedDataLoader(Counting(), 2, 3, num_workers=2),
        "up to 4 batches": ChunkedDataLoader(Counting(), 2, 3, num_workers=2),
        "up to 6 batches": ChunkedDataLoader(Counting(), 2, executor="threads", threads=3),
        "one batch at a time": ChunkedDataLoader(Counting(), 2),
        "dropped": ChunkedDataLoader(Counting(), 2, drop_last=True),
        "2 chunks of 3 batches": ChunkedDataLoader(Counting(), 2, 3),
        "none: every iter() is an epoch": ChunkedDataLoader(Counting(), 2),
    }
    for words, loader in texts.items():
        page = loader.describe()
        assert words in page and 5 < page.count("\n") < 40
