"""A loader from a configuration: whose collator, which order, what is possible."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from penstock.collate import CollatorRegistry, TaskSpec
from penstock.errors import ConfigError
from penstock.tuning import DataLoaderConfig, DataLoaderFactory

factory = DataLoaderFactory()


class Letters:
    pad_token_id = 0


class Worker(Dataset):
    """Tells who read a sample, and what the ambient generators gave there."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return index, random.random(), np.random.random(), torch.rand(()).item()


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(7))


def rows(samples=100):
    return TensorDataset(torch.arange(samples))


def numbers(loader):
    return [int(i) for batch in loader for i in batch[0]]


def loader_of(data, **options):
    return factory.create_dataloader(data, DataLoaderConfig(**({"num_workers": 0} | options)))


def test_defaults_are_those_of_the_guide():
    config = DataLoaderConfig()
    assert (config.batch_size, config.shuffle, config.num_workers) == (32, True, 2)
    assert (config.pin_memory, config.prefetch_factor, config.persistent_workers) == (None, 2, None)
    assert (config.drop_last, config.seed, config.collate_fn) == (False, 42, None)


def test_equal_seeds_give_equal_batches_and_no_seed_given_is_a_seed_too():
    """Defect: the guide says that without a seed the order is another each run; it is 42."""
    same = [numbers(loader_of(rows(), batch_size=16)) for _ in range(2)]
    assert same[0] == same[1] == numbers(loader_of(rows(), batch_size=16, seed=42))
    assert numbers(loader_of(rows(), batch_size=16, seed=123)) != same[0]
    drawn = [numbers(loader_of(rows(), seed=None)) for _ in range(2)]
    assert drawn[0] != drawn[1]


def test_a_loader_has_another_order_every_epoch_and_resumes_in_its_midst():
    """Defects: every epoch had the same order; a resume began the first one again."""
    loader = loader_of(rows(), batch_size=15)
    epochs = [numbers(loader) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    loader = loader_of(rows(), batch_size=15)
    numbers(loader)
    batches = iter(loader)
    seen = [int(i) for _ in range(3) for i in next(batches)[0]]
    resumed = loader_of(rows(), batch_size=15)
    resumed.load_state_dict(loader.state_dict())
    assert seen + numbers(resumed) == epochs[1]


@pytest.mark.parametrize(("drop_last", "batches", "last"), [(False, 7, 10), (True, 6, 15)])
def test_the_last_batch_is_short_or_dropped(drop_last, batches, last):
    loader = loader_of(rows(), batch_size=15, drop_last=drop_last)
    sizes = [len(batch[0]) for batch in loader]
    assert len(loader) == len(sizes) == batches and sizes[-1] == last


def test_a_batch_larger_than_the_dataset_is_all_of_it():
    (batch,) = loader_of(rows(), batch_size=1000)
    assert len(batch[0]) == 100


def test_a_list_of_equal_tensors_gives_batches_of_one_element():
    loader = loader_of([torch.randn(32) for _ in range(50)], batch_size=8)
    batch = next(iter(loader))
    assert len(batch) == 1 and batch[0].shape == (8, 32)
    with pytest.raises(ConfigError, match="pass a data_collator that pads, or a task_spec"):
        loader_of([torch.zeros(1), torch.zeros(2)])


def test_an_empty_dataset_gives_no_batches():
    assert list(loader_of(TensorDataset(torch.empty(0, 32)), shuffle=False)) == []


def test_what_collates_is_the_argument_else_the_configuration_else_the_task_else_torch():
    samples = [{"input_ids": [1, 2]}, {"input_ids": [3]}]
    mine, theirs = (lambda batch: ("argument", len(batch))), (lambda batch: ("config", len(batch)))
    task = {"task_spec": TaskSpec.lm_tiny(), "tokenizer": Letters()}

    def batch_of(collate_fn=None, **options):
        config = DataLoaderConfig(num_workers=0, collate_fn=collate_fn)
        return next(iter(factory.create_dataloader(samples, config, **options)))

    assert batch_of(theirs, data_collator=mine, **task) == ("argument", 2)
    assert batch_of(theirs, **task) == ("config", 2)
    assert sorted(batch_of(**task)) == ["attention_mask", "input_ids", "labels"]
    assert factory.create_dataloader(rows(), DataLoaderConfig()).collate_fn is default_collate


def test_the_errors_of_a_tasks_collator_come_through():
    """Defect: a factory that failed was silently replaced by torch's default."""
    CollatorRegistry.reset()
    with pytest.raises(ConfigError, match="tokenizer required"):
        factory.create_dataloader(rows(), DataLoaderConfig(), task_spec=TaskSpec.lm_tiny())


def test_memory_is_pinned_where_there_is_an_accelerator():
    found = loader_of(rows()).pin_memory
    assert found == torch.accelerator.is_available()
    asked = loader_of(rows(), pin_memory=True)
    assert asked.pin_memory and len(list(asked)) == 4  # and nothing warns


def test_persistent_workers_without_workers_are_no_error():
    """Defect: torch refuses the combination, and nobody kept it from being asked."""
    loader = loader_of(rows(), persistent_workers=True, prefetch_factor=4)
    assert not loader.persistent_workers and loader.prefetch_factor is None
    assert len(list(loader)) == 4


def test_what_reads_ahead_depends_on_workers_alone():
    """Defect: the guide says that there is no prefetching on a CPU."""
    with factory.create_dataloader(rows(), DataLoaderConfig(num_workers=1)) as loader:
        assert loader.prefetch_factor == 2 and loader.persistent_workers
    with factory.create_dataloader(
        rows(), DataLoaderConfig(num_workers=1, persistent_workers=False)
    ) as loader:
        assert not loader.persistent_workers


def test_ambient_generators_in_workers_are_keyed_and_ours_are_left_alone():
    states = torch.get_rng_state(), random.getstate()
    runs = []
    for _ in range(2):
        with factory.create_dataloader(
            Worker(), DataLoaderConfig(batch_size=4, num_workers=2)
        ) as loader:
            runs.append([[values.tolist() for values in batch] for batch in loader])
    assert runs[0] == runs[1]
    draws = [tuple(value) for batch in runs[0] for value in batch[1:]]
    assert len(set(draws)) == len(draws)
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]


def test_an_iterable_dataset_is_read_in_its_own_order():
    batches = loader_of(Endless(), batch_size=3, shuffle=False)
    assert [batch.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
