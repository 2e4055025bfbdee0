"""A configuration gives arguments that a loader takes, whatever it is made of."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.loaders import ChunkedDataLoader
from penstock.tuning import DataLoaderConfig


def test_defaults_are_the_documented_ones():
    config = DataLoaderConfig()
    assert (config.batch_size, config.shuffle, config.num_workers) == (32, True, 2)
    assert (config.pin_memory, config.prefetch_factor, config.persistent_workers) == (None, 2, None)
    assert (config.drop_last, config.seed, config.collate_fn, config.executor) == (
        *(False, 42, None),
        None,
    )
    assert config.options()["pin_memory"] == torch.accelerator.is_available()


@given(
    workers=st.integers(0, 2),
    executor=st.sampled_from([None, "inline", "threads", "processes"]),
    prefetch=st.sampled_from([None, 1, 4]),
    persistent=st.sampled_from([None, True, False]),
    pin=st.sampled_from([None, True, False]),
    threads=st.sampled_from([None, 3]),
)
def test_every_configuration_that_can_be_made_makes_a_loader(
    workers, executor, prefetch, persistent, pin, threads
):
    try:
        config = DataLoaderConfig(
            4, True, workers, pin, prefetch, persistent, False, 7, None, executor, threads
        )
    except ConfigError:
        assert (executor, workers) == ("processes", 0)
        return
    loader = ChunkedDataLoader(torch.arange(10), **config.options())
    assert len(loader) == 3
    assert loader.num_workers == (workers if executor in (None, "processes") else 0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1 sample, got 0"),
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"prefetch_factor": 0}, "prefetch_factor must be at least 1 batch, got 0"),
        ({"executor": "cluster"}, "executor must be one of"),
        ({"executor": "processes", "num_workers": 0}, "needs workers"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(values, said):
    with pytest.raises(ConfigError, match=said):
        DataLoaderConfig(**values)
