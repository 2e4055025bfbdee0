"""Used as torch's DataLoader is used, it does the same: every case runs on both."""

import copy
import dataclasses
import gc
import multiprocessing
import pickle
import threading
from collections import namedtuple
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    get_worker_info,
    random_split,
)

from penstock import ChunkedDataLoader, StreamLoader
from penstock.testing import same_batch

Pair = namedtuple("Pair", "left right")


class Labelled(torch.Tensor):
    """A tensor subclass, as transforms for images have them."""


@dataclasses.dataclass
class Point:
    x: int


class Made(Dataset):
    """Samples that a function makes."""

    def __init__(self, make, size=7):
        self.make, self.size = make, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if not 0 <= index < self.size:
            raise IndexError(index)
        return self.make(index)


class Many(Made):
    def __getitems__(self, indices):
        return [self.make(index) * 10 for index in indices]


def labelled(count):
    return torch.arange(float(count)).as_subclass(Labelled)


def numbers(index):
    return index


def pair(index):
    return Pair(torch.tensor(index), str(index))


def nested(index):
    return {"x": torch.full((2,), index), "more": [index, (float(index), f"s{index}", b"b")]}


def array(index):
    return np.full((2, 3), index, np.float32)


def subclass(index):
    return torch.tensor([index]).as_subclass(Labelled)


def scalar(index):
    return np.float64(index)


def long_text(index):
    return ["a" * index, "b"]


DATASETS = {
    "list": lambda: [3, 1, 2, 5, 4],
    "range": lambda: range(7),
    "tuple of tensors": lambda: tuple(torch.arange(3) + i for i in range(5)),
    "dict by number": lambda: {i: i * 2 for i in range(5)},
    "tensor": lambda: torch.arange(14).reshape(7, 2),
    "tensor that requires grad": lambda: torch.ones(5, 2, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(5, 2)),
    "complex tensor": lambda: torch.ones(5, dtype=torch.complex64).conj(),
    "tensor of bfloat16": lambda: torch.ones(5, dtype=torch.bfloat16),
    "tensor not contiguous": lambda: torch.arange(12).reshape(2, 6).t(),
    "tensor subclass": lambda: labelled(6),
    "array": lambda: np.arange(10.0).reshape(5, 2),
    "array of text": lambda: np.array(["a", "bc", "d"]),
    "tensors": lambda: TensorDataset(torch.arange(5), torch.ones(5, 2)),
    "tensors, one a subclass": lambda: TensorDataset(torch.arange(6), labelled(6)),
    "subset": lambda: Subset(torch.arange(9), [8, 1, 1, 5]),
    "subset of a subclass": lambda: Subset(labelled(9), [8, 1, 1, 5]),
    "random split": lambda: random_split(
        TensorDataset(torch.arange(9)), [5, 4], torch.Generator().manual_seed(1)
    )[0],
    "concatenated": lambda: ConcatDataset([[1, 2], torch.arange(3)]),
    "stacked": lambda: StackDataset(a=torch.arange(5), b=list("vwxyz")),
    "numbers": lambda: Made(numbers),
    "__getitems__": lambda: Many(numbers),
    "namedtuples": lambda: Made(pair),
    "nested": lambda: Made(nested),
    "arrays": lambda: Made(array),
    "tensor subclasses": lambda: Made(subclass),
    "numpy scalars": lambda: Made(scalar),
    "texts": lambda: Made(long_text),
    "empty": list,
}


def both(case, *args, **options):
    """What a case gives with torch's loader, and with ours."""
    found = [case(kind, *args, **options) for kind in (DataLoader, ChunkedDataLoader)]
    if options.get("num_workers"):
        gc.collect()  # torch's workers end with their iterator
    return found


def batches(kind, dataset, *, epochs=2, **options):
    loader = kind(dataset, **options)
    found = [list(loader) for _ in range(epochs)]
    if isinstance(loader, ChunkedDataLoader):
        loader.close()
    return found


SENT = ("list", "tensor", "tensor subclass", "tensors, one a subclass", "subset", "__getitems__")
SENT += ("namedtuples", "nested", "tensor subclasses", "empty")


@pytest.mark.parametrize("name", DATASETS)
def test_every_kind_of_dataset_and_sample_gives_the_same_batches(name):
    for options in ({"batch_size": 2}, {"batch_size": 3, "drop_last": True}):
        theirs, ours = both(batches, DATASETS[name](), **options)
        assert same_batch(ours, theirs)


@pytest.mark.parametrize("name", SENT)
def test_from_workers_too(name):
    theirs, ours = both(batches, DATASETS[name](), num_workers=1, batch_size=2)
    assert same_batch(ours, theirs)


@pytest.mark.parametrize("name", DATASETS)
def test_without_batches_and_with_the_default_size_too(name):
    for options in ({}, {"batch_size": None}, {"batch_size": 2, "collate_fn": list}):
        theirs, ours = both(batches, DATASETS[name](), **options)
        assert same_batch(ours, theirs)


@pytest.mark.parametrize(
    "options", [{}, {"drop_last": True}, {"batch_size": 100}, {"batch_size": None}]
)
def test_the_length_is_the_same(options):
    def lengths(kind):
        loader = kind(range(7), **{"batch_size": 3, **options})
        return len(loader), len(iter(loader)), len(list(loader)), len(loader)

    if options.get("batch_size") == 100:
        options = {**options, "drop_last": False}
    theirs, ours = both(lengths)
    assert ours == theirs


@pytest.mark.parametrize(
    "options",
    [
        lambda: {"sampler": [4, 1, 1]},
        lambda: {"sampler": RandomSampler(range(7), generator=torch.Generator().manual_seed(2))},
        lambda: {"sampler": SequentialSampler(range(7)), "drop_last": True},
        lambda: {"batch_size": 1, "batch_sampler": BatchSampler(range(7), 3, True)},
        lambda: {"batch_size": 1, "batch_sampler": [[1], [2, 3]]},
        lambda: {"generator": torch.Generator().manual_seed(2), "shuffle": True},
        lambda: {"generator": torch.Generator().manual_seed(2), "shuffle": True, "num_workers": 1},
        lambda: {"in_order": False, "num_workers": 1},
        lambda: {"timeout": 30, "num_workers": 1},
        lambda: {"prefetch_factor": 3, "num_workers": 1},
        lambda: {"persistent_workers": True, "num_workers": 1},
        pytest.param(
            lambda: {"multiprocessing_context": "spawn", "num_workers": 1, "epochs": 1},
            marks=pytest.mark.proof,  # two imports of torch; test_executors.py spawns a worker
        ),
        lambda: {"multiprocessing_context": "forkserver", "num_workers": 1, "epochs": 1},
        lambda: {"multiprocessing_context": multiprocessing.get_context("fork"), "num_workers": 1},
    ],
)
def test_torchs_own_arguments_do_what_they_do_there(options):
    found = []
    for kind in (DataLoader, ChunkedDataLoader):
        found.append(batches(kind, range(7), **{"batch_size": 2, **options()}))
        gc.collect()
    assert same_batch(*found)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": -1},
        {"batch_size": 2.0},
        {"batch_size": "2"},
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"prefetch_factor": -1, "num_workers": 1},
        {"persistent_workers": True},
        {"multiprocessing_context": "spawn"},
        {"multiprocessing_context": "teleport", "num_workers": 1},
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 3},
        {"batch_sampler": [[1]], "batch_size": 1, "sampler": [1]},
        {"batch_size": None, "drop_last": True},
        {"drop_last": 1},
        {"nonsense": 1},
    ],
)
def test_what_torch_refuses_is_refused_with_the_same_kind_of_error(options):
    kinds = []
    for kind in (DataLoader, ChunkedDataLoader):
        with pytest.raises((TypeError, ValueError)) as refused:
            kind(range(7), **{"batch_size": 2, **options})
        kinds.append(ValueError if isinstance(refused.value, ValueError) else TypeError)
    assert kinds[0] is kinds[1]


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_torch_keeps_from_being_assigned_stays_as_it_is(name):
    for kind in (DataLoader, ChunkedDataLoader):
        loader = kind(range(7), 2)
        with pytest.raises(ValueError, match=f"{name} attribute should not be set"):
            setattr(loader, name, getattr(loader, name))


def test_attributes_that_programs_read_are_there():
    def attributes(kind):
        loader = kind(range(7), 2, num_workers=1, drop_last=True, collate_fn=list)
        names = ("batch_size", "num_workers", "drop_last", "pin_memory", "timeout", "dataset")
        names += ("prefetch_factor", "worker_init_fn", "generator", "collate_fn", "in_order")
        return [getattr(loader, name) for name in names], len(loader.batch_sampler)

    theirs, ours = both(attributes)
    assert ours == theirs
    assert isinstance(ChunkedDataLoader(range(7), 2), DataLoader)


# -- iterating


def test_an_exhausted_iterator_stays_exhausted():
    for kind in (DataLoader, ChunkedDataLoader):
        iterator = iter(kind(range(4), 2))
        assert iter(iterator) is iterator
        assert len(list(iterator)) == 2
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(iterator)


def test_a_loop_that_is_left_begins_again():
    def heads(kind):
        loader = kind(range(6), 2)
        return [[batch.tolist() for batch in islice(loader, 2)] for _ in range(3)]

    theirs, ours = both(heads)
    assert ours == theirs


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"batch_size": None}])
def test_a_length_that_is_too_long_is_the_datasets_error(options):
    class TooLong(Made):
        def __len__(self):
            return self.size + 3

    for kind in (DataLoader, ChunkedDataLoader):
        loader = kind(TooLong(numbers), **{"batch_size": 2, **options})
        with pytest.raises(IndexError, match="7"):
            list(loader)
        if kind is ChunkedDataLoader:
            loader.close()
    gc.collect()


def test_a_length_that_is_too_short_leaves_samples_out():
    class TooShort(Made):
        def __len__(self):
            return 4

    theirs, ours = both(batches, TooShort(numbers), batch_size=2)
    assert same_batch(ours, theirs)


@pytest.mark.parametrize("sample", [None, object(), Point(1)])
def test_samples_that_cannot_be_collated_are_torchs_error(sample):
    for kind in (DataLoader, ChunkedDataLoader):
        with pytest.raises(TypeError, match="default_collate"):
            next(iter(kind([sample] * 3, 2)))


def test_tensors_of_different_shapes_are_torchs_error():
    for kind in (DataLoader, ChunkedDataLoader):
        with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
            next(iter(kind([torch.zeros(2), torch.zeros(3)], 2)))


class Waiting(Made):
    """One sample takes longer than the loader waits."""

    def __getitem__(self, index):
        if index == 2:
            threading.Event().wait(6)
        return index


def test_a_batch_that_takes_too_long_is_torchs_error():
    for kind in (DataLoader, ChunkedDataLoader):
        loader = kind(Waiting(numbers), 2, num_workers=1, timeout=3)
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        with pytest.raises(RuntimeError, match=r"timed out after 3|waited 3 s \(timeout\)"):
            next(iterator)
        if kind is ChunkedDataLoader:
            loader.close()
        del iterator, loader
        gc.collect()


# -- workers


class Opened(TensorDataset):
    """A dataset whose workers open what they read from."""

    handle = None

    def open(self, worker):
        self.handle = worker
        self.tensors = tuple(tensor + 100 for tensor in self.tensors)


class OpenedSamples(Made):
    handle = None

    def open(self, worker):
        self.handle = worker
        self.make = array

    def __getitem__(self, index):
        assert get_worker_info().dataset is self
        return super().__getitem__(index)


class OpenedBatches(OpenedSamples):
    def __getbatch__(self, indices):
        assert get_worker_info().dataset is self
        return torch.stack([torch.from_numpy(self.make(i)) for i in indices.tolist()])


def open_dataset(worker):
    info = get_worker_info()
    assert info.id == worker and info.num_workers == 2 and info.seed == torch.initial_seed()
    info.dataset.open(worker)


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (lambda: Opened(torch.arange(8), torch.ones(8)), "fork"),
        (lambda: Opened(torch.arange(8), torch.ones(8)), "forkserver"),
        (lambda: OpenedSamples(numbers), "fork"),
        (lambda: OpenedBatches(numbers), "fork"),
    ],
)
def test_a_worker_init_fn_finds_its_own_dataset_and_what_it_does_counts(make, method):
    options = {"num_workers": 2, "worker_init_fn": open_dataset}
    options["multiprocessing_context"] = method
    theirs, ours = both(batches, make(), batch_size=2, epochs=1, **options)
    assert same_batch(ours, theirs)


def test_a_subset_of_its_own_dataset_is_found_too():
    dataset = Subset(Opened(torch.arange(8)), [7, 1, 2])

    def opened(worker):
        get_worker_info().dataset.dataset.open(worker)

    theirs, ours = both(batches, dataset, batch_size=2, num_workers=1, worker_init_fn=opened)
    assert same_batch(ours, theirs) and ours[0][0][0].tolist() == [107, 101]


def test_a_worker_init_fn_that_fails_is_said():
    def fails(worker):
        raise ValueError("cannot open the archive")

    for kind in (DataLoader, ChunkedDataLoader):
        loader = kind(Opened(torch.arange(8)), 2, num_workers=1, worker_init_fn=fails)
        with pytest.raises(ValueError, match="cannot open the archive"):
            next(iter(loader))
        if kind is ChunkedDataLoader:
            loader.close()
        del loader
        gc.collect()


def test_seeds_of_workers_differ():
    class Seeds(Made):
        def __getitem__(self, index):
            return get_worker_info().seed

    for kind in (DataLoader, ChunkedDataLoader):
        loader = kind(Seeds(numbers, 8), 2, num_workers=2)
        seeds = {int(seed) for batch in loader for seed in batch}
        assert len(seeds) == 2
        if kind is ChunkedDataLoader:
            loader.close()
        del loader
        gc.collect()


# -- copies


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_loader_that_was_used_can_be_copied(copied):
    def of_copy(kind):
        loader = kind(TensorDataset(torch.arange(7)), 2)
        list(loader)
        return list(copied(loader))

    theirs, ours = both(of_copy)
    assert same_batch(ours, theirs)


def test_it_is_subscripted_as_torchs_is():
    for kind in (DataLoader, ChunkedDataLoader, StreamLoader):
        assert len(list(kind[torch.Tensor](torch.arange(6), 2))) == 3


def test_a_misspelt_argument_is_named_with_the_one_that_was_meant():
    with pytest.raises(TypeError, match="ChunkedDataLoader has no argument 'chunksize': did you"):
        ChunkedDataLoader(torch.arange(4), 2, chunksize=3)
    with pytest.raises(TypeError, match="has no argument 'num_worker': did you mean 'num_workers'"):
        ChunkedDataLoader(torch.arange(4), 2, num_worker=1)
