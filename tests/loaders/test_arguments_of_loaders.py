"""Every argument is checked where it enters: a wrong one is refused in one sentence."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from penstock import (
    ChunkedDataLoader,
    ChunkedSampler,
    ConfigError,
    DataLoaderConfig,
    DataLoaderFactory,
    PlanError,
    StreamLoader,
    open_source,
    tune,
)
from penstock.loaders.partition import validation_loader
from penstock.loaders.plan_settings import order_named

DATA = torch.arange(40)
NO_INTEGERS = [True, False, np.True_, "3", 1.5, 2.0, [2], float("nan")]
NO_FLAGS = [1, 0, "yes", "False", [], 1.0]


def chunked(**options):
    return ChunkedDataLoader(DATA, **{"batch_size": 4, **options})


def sampler(**options):
    return ChunkedSampler(**{"dataset_size": 40, "chunk_size": 8, **options})


INTEGERS = {  # argument: what takes it, and the smallest value that is accepted
    "batch_size": (chunked, 1),
    "chunk_size": (chunked, 1),
    "seed": (chunked, 0),
    "rank": (lambda rank: chunked(rank=rank, world_size=2), 0),
    "world_size": (lambda world_size: chunked(rank=0, world_size=world_size), 1),
    "num_workers": (chunked, 0),
    "prefetch_factor": (
        lambda prefetch_factor: chunked(num_workers=1, prefetch_factor=prefetch_factor),
        1,
    ),
    "threads": (lambda threads: chunked(executor="threads", threads=threads), 1),
    "set_batch_size: batch_size": (lambda batch_size: chunked().set_batch_size(batch_size), 1),
    "set_chunk_size: chunk_size": (lambda chunk_size: chunked().set_chunk_size(chunk_size), 1),
    "set_chunk: chunk_idx": (lambda chunk_idx: chunked(chunk_size=2).set_chunk(chunk_idx), 0),
    "set_epoch: epoch": (lambda epoch: chunked().set_epoch(epoch), 0),
    "seek: epoch": (lambda epoch: chunked().seek(epoch), 0),
    "seek: step": (lambda step: chunked().seek(0, step), 0),
    "samples_at: step": (lambda step: chunked().samples_at(step), None),
    "samples_at: epoch": (lambda epoch: chunked().samples_at(0, epoch), 0),
    "sampler: dataset_size": (sampler, None),
    "sampler: chunk_size": (sampler, 1),
    "sampler: seed": (sampler, 0),
    "sampler.set_chunk: chunk_idx": (lambda chunk_idx: sampler().set_chunk(chunk_idx), 0),
    "get_chunk_indices: chunk_idx": (lambda chunk_idx: sampler().get_chunk_indices(chunk_idx), 0),
    "sampler.set_epoch: epoch": (lambda epoch: sampler().set_epoch(epoch), 0),
    "config: batch_size": (DataLoaderConfig, 1),
    "config: num_workers": (DataLoaderConfig, 0),
    "config: prefetch_factor": (DataLoaderConfig, 1),
    "config: seed": (DataLoaderConfig, 0),
    "config: threads": (DataLoaderConfig, 1),
    "factory: batch_size": (
        lambda batch_size: DataLoaderFactory.create_training_loader(DATA, batch_size),
        1,
    ),
    "get_optimal_config: dataset_size": (DataLoaderFactory.get_optimal_config, 0),
    "validation: chunk_size": (lambda chunk_size: validation_loader(DATA, 4, chunk_size), 1),
    "stream: batch_size": (
        lambda batch_size: StreamLoader(np.zeros((40, 1)), batch_size).close(),
        1,
    ),
    "pass-through: set_epoch: epoch": (
        lambda epoch: chunked(sampler=torch.utils.data.DistributedSampler(DATA, 2, 0)).set_epoch(
            epoch
        ),
        0,
    ),
}
FLAGS = {
    "shuffle": chunked,
    "drop_last": chunked,
    "evaluation": chunked,
    "pin_memory": chunked,
    "persistent_workers": chunked,
    "in_order": chunked,
    "sampler: shuffle": sampler,
    "config: shuffle": DataLoaderConfig,
    "config: drop_last": DataLoaderConfig,
    "config: pin_memory": DataLoaderConfig,
    "config: persistent_workers": DataLoaderConfig,
    "get_optimal_config: has_augmentation": lambda **hint: DataLoaderFactory.get_optimal_config(
        9, **hint
    ),
    "factory: has_standardization": lambda **hint: DataLoaderFactory.create_training_loader(
        DATA, 4, **hint
    ),
}


def refused(make, name, value):
    argument = name.rsplit(" ", 1)[-1]
    with pytest.raises((PlanError, ConfigError), match=argument) as refusal:
        make(**{argument: value})
    text = str(refusal.value)
    assert text.startswith(argument) and "\n" not in text
    assert "must be" in text
    return text


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_is_an_integer(name):
    make, least = INTEGERS[name]
    for value in NO_INTEGERS:
        refused(make, name, value)
    if least is not None:
        assert f"got {least - 1}" in refused(make, name, least - 1)
    for accepted in (np.int64(1), np.uint8(1), torch.tensor(1)):
        make(**{name.rsplit(" ", 1)[-1]: accepted})


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_a_flag(name):
    for value in NO_FLAGS:
        refused(FLAGS[name], name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", -1),
        ("timeout", "3"),
        ("timeout", True),
        ("timeout", float("nan")),
        ("collate_fn", 3),
        ("worker_init_fn", "seed"),
        ("executor", "cluster"),
        ("executor", True),
        ("limit_batches", True),
        ("limit_batches", -1),
        ("limit_batches", "all"),
        ("limit_batches", float("nan")),
        ("order", "block"),
        ("order", 3),
    ],
)
def test_other_arguments_say_what_they_take(name, value):
    refused(chunked, name, value)


def test_every_argument_of_the_constructors_is_in_a_table():
    """A new argument must be checked, and added here."""
    known = {name.rsplit(" ", 1)[-1] for name in (*INTEGERS, *FLAGS)}
    known |= {"limit_batches", "order", "executor", "dataset", "self", "dataloader_kwargs"}
    known |= {"weights", "epoch_samples", "lengths", "max_tokens", "window", "group"}  # swept
    known |= {"tune", "memory_budget"}  # in tests/loaders/test_online.py
    for kind in (ChunkedDataLoader, ChunkedSampler):
        assert set(inspect.signature(kind.__init__).parameters) <= known
    theirs = set(inspect.signature(DataLoader.__init__).parameters)
    passed = {"sampler", "batch_sampler", "generator", "multiprocessing_context"}
    checked = {"timeout", "collate_fn", "worker_init_fn"}
    assert theirs - known - passed - checked <= {"pin_memory_device"}


# -- shuffle, as torch has it third


@pytest.mark.parametrize("value", [True, False])
def test_a_third_argument_that_is_a_bool_was_meant_for_shuffle(value):
    for give in (
        lambda: ChunkedDataLoader(DATA, 8, value),
        lambda: chunked().set_chunk_size(value),
    ):
        with pytest.raises(PlanError, match=rf"chunk_size.*pass shuffle={value} by keyword"):
            give()
    loader = ChunkedDataLoader(DATA, 8, shuffle=value)  # as advised
    assert torch.equal(torch.cat(list(loader)), DATA) is not value
    assert len(loader) == 5


def test_numbers_of_numpy_come_out_as_ours():
    loader = chunked(batch_size=np.int64(4), chunk_size=np.int32(2), limit_batches=np.float32(0.5))
    assert type(loader.batch_size) is type(loader.chunk_size) is int
    loader.set_batch_size(np.int16(5))
    assert type(loader.batch_size) is int and loader.batch_sampler.batch_size == 5
    assert len(list(chunked(limit_batches=np.float32(0.5)))) == 5


def test_none_is_torchs_default_where_torch_takes_it():
    names = ("sampler", "batch_sampler", "generator", "collate_fn", "worker_init_fn")
    names += ("multiprocessing_context", "prefetch_factor", "pin_memory", "persistent_workers")
    options = dict.fromkeys(names)
    assert len(list(DataLoader(DATA, 4, **options))) == len(list(chunked(**options))) == 10


def test_an_order_is_named_as_it_is():
    with pytest.raises(PlanError, match="order must be one of 'shuffled', 'sequential', 'block'"):
        order_named("blok", 10, 1)


# -- what is no dataset

PATHS = ["x.zarr", Path("x.zarr"), "", "s3://bucket/x.zarr"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "make",
    [
        lambda data: ChunkedDataLoader(data, 2),
        lambda data: ChunkedDataLoader(data, 2, 3),
        lambda data: ChunkedDataLoader(data, 2, sampler=[0, 1]),
        lambda data: validation_loader(data, 2),
        lambda data: DataLoaderFactory.create_training_loader(data, 2),
        lambda data: DataLoaderFactory.create_validation_loader(data, 2),
        lambda data: DataLoaderFactory.create_dataloader(data, DataLoaderConfig(batch_size=2)),
    ],
)
def test_a_path_is_no_dataset_of_letters(make, path):
    with pytest.raises(PlanError, match=r"dataset must be a dataset, got the path .*StreamLoader"):
        make(path)


def test_a_path_is_no_size():
    with pytest.raises(PlanError, match=r"dataset_size must be an integer, got 'x\.zarr'"):
        ChunkedSampler("x.zarr", 2)


def test_tune_refuses_a_path():
    with pytest.raises(
        PlanError, match=r"got the path 'x\.zarr': stream the file with StreamLoader"
    ):
        tune("x.zarr", 2, budget_seconds=0.1, cached=False, verbose=False)


def test_what_is_advised_for_a_path_works(tmp_path):
    path = str(tmp_path / "x.npy")
    np.save(path, np.arange(6, dtype=np.float32))
    with pytest.raises(PlanError) as refusal:
        ChunkedDataLoader(path, 2)
    assert f"StreamLoader({path!r}, batch_size)" in str(refusal.value)
    with StreamLoader(path, 2, shuffle=False) as loader:
        assert torch.cat(list(loader)).tolist() == list(range(6))


def test_bytes_are_no_dataset_but_an_array_of_them_is():
    for data in (b"\x01\x02\x03", bytearray(b"\x01\x02\x03"), memoryview(b"\x01\x02\x03")):
        with pytest.raises(PlanError, match=r"np\.frombuffer\(dataset, np\.uint8\)"):
            ChunkedDataLoader(data, 2)
        loader = ChunkedDataLoader(np.frombuffer(data, np.uint8), 3)
        assert next(iter(loader)).tolist() == [1, 2, 3]


def test_a_source_is_a_dataset_of_its_samples_and_what_is_only_iterated_is_none():
    source = open_source(np.arange(6.0)).windows(2)
    for loader in (ChunkedDataLoader(source, 2), StreamLoader(source, 2, drop_last=False)):
        with loader:
            assert sorted(torch.cat(list(loader))[:, 0].tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(PlanError, match=r"generator has no __getitem__.* an IterableDataset"):
        ChunkedDataLoader((i for i in range(3)), 2)

    class Iterated(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    assert len(list(ChunkedDataLoader(Iterated(), 2))) == 2


class Endless(Dataset):
    def __getitem__(self, index):
        return index


def test_a_dataset_without_a_length_needs_a_sampler():
    with pytest.raises(PlanError, match=r"Endless has no length .*__len__, or pass a sampler"):
        ChunkedDataLoader(Endless(), 2)
    assert len(list(ChunkedDataLoader(Endless(), 2, sampler=range(6)))) == 3


@pytest.mark.parametrize("given", [32, {"batch_size": 32, "num_workers": 0}])
def test_a_configuration_is_one_and_the_advice_leads_to_one(given):
    with pytest.raises(ConfigError, match="config must be a DataLoaderConfig, got") as refused:
        DataLoaderFactory.create_dataloader(DATA, given)
    advised = r"pass (DataLoaderConfig\(batch_size=32\)), or (DataLoaderConfig\(\*\*settings\))"
    by_number, by_dict = re.search(advised, str(refused.value)).groups()
    settings = given if isinstance(given, dict) else {}
    config = eval(by_dict if settings else by_number, {**globals(), "settings": settings})  # noqa: S307
    assert config.batch_size == 32
    assert len(list(DataLoaderFactory.create_dataloader(DATA, config))) == 2
