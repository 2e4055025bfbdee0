"""A loader from a configuration: collators by rank, lists of tensors, tasks, seeds."""

import warnings

import pytest
import torch

from penstock.collate import TaskSpec
from penstock.errors import ConfigError
from penstock.testing import same_batch
from penstock.tuning import DataLoaderConfig, DataLoaderFactory

make = DataLoaderFactory.create_dataloader
INLINE = DataLoaderConfig(batch_size=8, num_workers=0)


class Tokenizer:
    pad_token_id = 0


def by_argument(samples):
    return "argument", len(samples)


def by_config(samples):
    return "config", len(samples)


def texts(count=10):
    return [{"input_ids": [1] * (1 + i % 3)} for i in range(count)]


def test_the_collator_given_goes_before_the_configurations_and_that_before_the_tasks():
    config = DataLoaderConfig(batch_size=4, num_workers=0, collate_fn=by_config)
    task = TaskSpec.lm_tiny()
    given = {"task_spec": task, "tokenizer": Tokenizer()}
    assert next(iter(make(texts(), config, **given, data_collator=by_argument)))[0] == "argument"
    assert next(iter(make(texts(), config, **given)))[0] == "config"
    batch = next(iter(make(texts(), INLINE, **given)))
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert batch["input_ids"].shape == (8, 3)
    plain = next(iter(make([{"x": torch.ones(2)}] * 3, INLINE)))
    assert plain["x"].shape == (3, 2)


def test_a_list_of_tensors_becomes_one_and_a_batch_has_one_element():
    data = [torch.full((5,), float(i)) for i in range(50)]
    loader = make(data, INLINE)
    sizes = []
    for batch in loader:
        assert len(batch) == 1
        sizes.append(len(batch[0]))
    assert sizes == [8] * 6 + [2]


def test_tensors_of_different_shapes_need_a_collator():
    ragged = [torch.zeros(3), torch.zeros(5)]
    with pytest.raises(ConfigError, match=r"sample 0 is \(3,\).*data_collator that pads"):
        make(ragged, INLINE)
    loader = make(ragged, INLINE, data_collator=by_argument)
    assert list(loader) == [("argument", 2)]


def test_sizes_are_those_of_the_last_batch_too():
    data = torch.arange(100)
    assert [len(b) for b in make(data, DataLoaderConfig(15, num_workers=0))] == [15] * 6 + [10]
    assert len(make(data, DataLoaderConfig(15, num_workers=0, drop_last=True))) == 6
    assert len(list(make(data, DataLoaderConfig(1000, num_workers=0)))) == 1
    assert list(make([], DataLoaderConfig(4, shuffle=False, num_workers=0))) == []


def test_equal_seeds_give_equal_epochs_and_others_others():
    def epoch(seed):
        return list(make(torch.arange(64), DataLoaderConfig(8, num_workers=0, seed=seed)))

    assert same_batch(epoch(1), epoch(1))
    assert not same_batch(epoch(1), epoch(2))


def test_workers_of_a_configuration_deliver_the_same_as_none():
    config = DataLoaderConfig(batch_size=3, num_workers=2)
    task = {"task_spec": TaskSpec.lm_tiny(), "tokenizer": Tokenizer()}
    with make(texts(), config, **task) as loader:
        assert (loader.num_workers, loader.persistent_workers) == (2, True)
        assert loader.pin_memory is torch.accelerator.is_available()
        found = list(loader)
    assert same_batch(found, list(make(texts(), DataLoaderConfig(3, num_workers=0), **task)))


def test_a_collator_that_cannot_go_to_a_worker_falls_back_with_a_warning():
    config = DataLoaderConfig(batch_size=5, num_workers=2, executor="processes")
    with pytest.warns(UserWarning, match=r"collate_fn \(function\) cannot.*num_workers=0 is used"):
        loader = make(texts(), config, data_collator=lambda samples: len(samples))
    assert loader.num_workers == 0 and list(loader) == [5, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(make(texts(), INLINE, data_collator=lambda samples: len(samples))) == [8, 2]
