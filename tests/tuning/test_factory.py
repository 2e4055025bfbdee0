"""The factory's loaders: the machine decides, the caller's arguments win, workers fall back."""

import logging
import random
import threading
import warnings

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from penstock.datasets import AugmentedDataset, StandardizedDataset
from penstock.loaders import worker_init_fn
from penstock.testing import same_batch
from penstock.tuning import DataLoaderConfig, DataLoaderFactory, Machine, OptimalDataLoaderFactory
from penstock.tuning.cost import SampleCost, measure_cost

MANY_WORKERS = "ignore:This DataLoader will create"


class Computed(Dataset):
    """Samples that are made one by one, and take some computing."""

    def __init__(self, samples=40, handle=None):
        self.samples, self.handle = samples, handle

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        sum(range(20_000))
        return torch.full((4,), float(index)), index


class Ambient(Computed):
    """Samples with a user's own augmentation, drawn from ambient generators."""

    def __getitem__(self, index):
        return index, np.random.random(), random.random(), torch.rand(())


class Lazy(Computed):
    """Opens its file where a sample is first read."""

    def __getitem__(self, index):
        if self.handle is None:
            self.handle = threading.Lock()
        return super().__getitem__(index)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(7))


def spectrograms(samples=50):
    return TensorDataset(torch.rand(samples, 1, 8, 6), torch.arange(samples) % 5)


def indices(loader):
    return [int(i) for batch in loader for i in batch[1]]


# -- the configuration, from the machine


@given(st.integers(1, 256), st.booleans(), st.integers(0, 10**7), st.booleans(), st.booleans())
def test_a_configuration_is_possible_and_within_the_caps(cores, accelerator, size, aug, std):
    machine = Machine(cores, accelerator)
    config = DataLoaderFactory.get_optimal_config(size, aug, std, machine=machine)
    assert isinstance(config["num_workers"], int) and 0 <= config["num_workers"] <= 16
    assert config["num_workers"] <= cores
    assert config["num_workers"] <= 4 or size >= 1000
    assert config["persistent_workers"] is (config["num_workers"] > 0)
    assert ("prefetch_factor" in config) == (config["num_workers"] > 0)
    assert config["pin_memory"] is accelerator
    assert config["drop_last"] is True

    plain = DataLoaderFactory.get_optimal_config(size, machine=machine)
    assert config["num_workers"] >= plain["num_workers"]  # costlier samples, more workers


def test_the_large_machine_of_the_guide_gets_many_workers():
    machine = Machine(cores=32, accelerator=True)
    found = [
        DataLoaderFactory.get_optimal_config(size, *flags, machine=machine)["num_workers"]
        for size in (500, 5000, 50_000)
        for flags in ((True, True), (False, False))
    ]
    assert found == [4, 4, 12, 8, 14, 10]


@pytest.mark.parametrize(
    "factory", [DataLoaderFactory, DataLoaderFactory(), OptimalDataLoaderFactory]
)
def test_the_methods_work_on_the_class_and_on_an_instance(factory):
    assert factory.get_optimal_config(10)["num_workers"] >= 0
    train = factory.create_training_loader(spectrograms(), 16)
    validation = factory.create_validation_loader(spectrograms(), 16)
    assert train.batch_size == validation.batch_size == 16
    assert (len(train), len(validation)) == (3, 4)
    x, y = next(iter(train))
    assert x.shape == (16, 1, 8, 6) and y.shape == (16,)


# -- what a caller gives


def test_flags_are_hints_and_never_reach_the_loader():
    dataset = spectrograms()
    flags = {"has_augmentation": True, "has_standardization": True}
    loader = DataLoaderFactory.create_training_loader(dataset, 16, **flags)
    assert loader.dataset is dataset and len(list(loader)) == 3
    assert len(DataLoaderFactory.create_validation_loader(dataset, 16, **flags)) == 4


def test_a_callers_arguments_win_shuffle_false_too():
    loader = DataLoaderFactory.create_training_loader(
        Computed(10), 4, shuffle=False, drop_last=False, num_workers=0
    )
    assert indices(loader) == list(range(10))
    shuffled = DataLoaderFactory.create_validation_loader(Computed(10), 4, shuffle=True)
    assert sorted(indices(shuffled)) == list(range(10)) != indices(shuffled)
    assert indices(shuffled) == indices(shuffled)  # of an evaluation, always the same
    dropping = DataLoaderFactory.create_validation_loader(Computed(10), 4, drop_last=True)
    assert indices(dropping) == indices(dropping) == list(range(8))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 50])
def test_validation_drops_nothing_and_begins_at_the_beginning(size):
    loader = DataLoaderFactory.create_validation_loader(Computed(size), 16, num_workers=0)
    next(iter(loader))
    assert indices(loader) == indices(loader) == list(range(size))


def test_a_sampler_of_the_callers_own_passes_through():
    loader = DataLoaderFactory.create_training_loader(spectrograms(), 4, sampler=[3, 1, 2, 0, 9])
    assert indices(loader) == [3, 1, 2, 0]
    batches = [[0, 1], [2, 3, 4]]
    loader = DataLoaderFactory.create_training_loader(spectrograms(), 4, batch_sampler=batches)
    assert indices(loader) == [0, 1, 2, 3, 4]


def test_an_iterable_dataset_is_read_once():
    loader = DataLoaderFactory.create_training_loader(Endless(), 3)
    assert loader.num_workers == 0
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("given", [{"num_workers": 0}, {"executor": "threads"}])
def test_what_only_workers_have_goes_with_them(given):
    loader = DataLoaderFactory.create_training_loader(
        Computed(), 8, prefetch_factor=4, persistent_workers=True, timeout=3, **given
    )
    with loader:
        assert len(list(loader)) == 5


# -- workers


@pytest.mark.filterwarnings(MANY_WORKERS)
@pytest.mark.parametrize("workers", [0, 2, 4, 8])
def test_plain_samples_come_from_any_number_of_workers(workers):
    with DataLoaderFactory.create_training_loader(Computed(24), 8, num_workers=workers) as loader:
        assert loader.num_workers == workers
        assert loader.persistent_workers is (workers > 0)
        assert sorted(indices(loader)) == list(range(24))


@pytest.mark.filterwarnings(MANY_WORKERS)
def test_standardised_and_augmented_samples_are_the_same_with_any_workers():
    standardized = StandardizedDataset(spectrograms(), range(40), 0.5, 0.3)
    augmented = AugmentedDataset(
        standardized, {"time_mask_param": 2, "freq_mask_param": 2, "p": 1.0}
    )
    for dataset in (standardized, augmented):
        epochs = []
        for workers in (0, 2, 4):
            loader = DataLoaderFactory.create_training_loader(
                dataset, 16, has_augmentation=True, num_workers=workers
            )
            with loader:
                epochs.append([batch for _ in range(2) for batch in loader])
        assert len(epochs[0]) == 4
        assert same_batch(epochs[1], epochs[0]) and same_batch(epochs[2], epochs[0])


def ambient_epochs(workers, epochs=3, **options):
    loader = DataLoaderFactory.create_training_loader(
        Ambient(24), 4, num_workers=workers, **options
    )
    with loader:
        return [
            [torch.stack([x.double() for x in batch]) for batch in loader] for _ in range(epochs)
        ]


@pytest.mark.filterwarnings(MANY_WORKERS)
def test_ambient_draws_differ_by_worker_and_epoch_in_persistent_workers():
    epochs = ambient_epochs(2)
    draws = [float(d) for epoch in epochs for batch in epoch for d in batch[1:].flatten()]
    assert len(set(draws)) == len(draws) == 3 * 24 * 3
    assert same_batch(ambient_epochs(2), epochs)  # and are the same in the next run
    assert same_batch(ambient_epochs(3, persistent_workers=False), epochs)  # with any workers


def test_ambient_draws_go_on_exactly_after_a_resume():
    make = lambda: DataLoaderFactory.create_training_loader(Ambient(24), 4, num_workers=2)  # noqa: E731
    with make() as loader:
        whole = list(loader)
    with make() as loader:
        batches = iter(loader)
        head, state = [next(batches), next(batches)], loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        assert same_batch(head + list(loader), whole)


def seeds_himself(worker_id):
    np.random.seed(worker_id)


def test_a_worker_init_fn_of_the_callers_own_is_left_alone():
    (epoch,) = ambient_epochs(1, epochs=1, worker_init_fn=seeds_himself)
    np.random.seed(0)
    assert epoch[0][1].tolist() == np.random.random(4).tolist()


def test_the_ambient_generators_of_this_process_are_not_disturbed():
    np.random.seed(3), random.seed(3), torch.manual_seed(3)
    control = np.random.random(), random.random(), torch.rand(()).item()
    np.random.seed(3), random.seed(3), torch.manual_seed(3)
    with DataLoaderFactory.create_training_loader(Ambient(8), 4) as loader:
        assert loader.num_workers == 0 or loader.worker_init_fn is worker_init_fn
    assert (np.random.random(), random.random(), torch.rand(()).item()) == control


# -- what cannot go to workers


def warned(dataset, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoaderFactory.create_training_loader(dataset, 4, num_workers=2, **options)
    assert loader.num_workers == 0 and len(list(loader)) == 10
    (warning,) = caught
    assert warning.filename == __file__
    return str(warning.message)


def test_a_lambda_in_the_dataset_or_the_collate_fn_is_named():
    said = warned(Computed(handle=lambda x: x))
    assert "dataset.handle (function) cannot be sent to a worker process" in said
    assert "it is a lambda: write it with def" in said and "num_workers=0 is used" in said
    assert "collate_fn (function) cannot be sent" in warned(Computed(), collate_fn=lambda b: b)


def test_a_local_class_is_named():
    class Local(Computed):
        pass

    said = warned(Local())
    assert "dataset (Local)" in said and "define it at the top of a module" in said


def test_open_files_and_hdf5_handles_are_named(tmp_path):
    with (tmp_path / "a.bin").open("wb") as file:
        said = warned(Computed(handle=file))
        assert "dataset.handle (BufferedWriter)" in said and "a.bin" in said
    with h5py.File(tmp_path / "a.h5", "w") as file:
        said = warned(StandardizedWith(file))
    assert "dataset.base.handle (File)" in said
    assert "it is an open HDF5 handle: keep its path" in said


class StandardizedWith(Computed):
    def __init__(self, handle):
        super().__init__()
        self.base = Computed(handle=handle)


def test_measuring_opens_nothing_that_workers_would_inherit():
    dataset = Lazy()
    cost = measure_cost(dataset)
    assert cost.nbytes == 16 and cost.seconds > 0
    assert dataset.handle is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoaderFactory.create_training_loader(dataset, 4, num_workers=1)
    with loader:
        assert len(list(loader)) == 10
    assert dataset.handle is None


# -- what it says


def test_one_line_says_the_settings_and_why(caplog):
    with caplog.at_level(logging.INFO, "penstock"):
        DataLoaderFactory.create_training_loader(spectrograms(), 16, has_augmentation=True)
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith("loader of TensorDataset: batch_size=16, num_workers=0")
    assert "gathered in one call: workers would only copy them" in line


def test_reading_ahead_stays_within_the_budget_and_says_so(caplog):
    make = DataLoaderFactory.create_training_loader
    loader = make(Computed(), 8, num_workers=2, memory_budget=2 * 3 * 8 * 16)
    assert loader.prefetch_factor == 2 and not caplog.records  # torch's own, and it fits
    loader = make(Computed(), 8, num_workers=2, memory_budget=2 * 8 * 16)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 1)
    (line,) = [r.getMessage() for r in caplog.records]
    assert "memory_budget=256 B: using num_workers=2, prefetch_factor=1" in line
    loader = make(Computed(), 8, num_workers=2, prefetch_factor=5, memory_budget="1kB")
    assert loader.prefetch_factor == 5
    assert "keeping prefetch_factor=5 as passed" in caplog.records[-1].getMessage()


class OnlyBatches(Dataset):
    """Has no way to read one sample."""

    def __len__(self):
        return 20

    def __getitems__(self, indices):
        return [torch.full((2,), float(i)) for i in indices]


def test_a_dataset_that_gives_only_lists_of_samples_is_measured_too():
    assert measure_cost(OnlyBatches()).nbytes == 8
    with DataLoaderFactory.create_training_loader(OnlyBatches(), 5, num_workers=1) as loader:
        assert len(list(loader)) == 4


def test_costs_tell_cheap_costly_and_waiting_samples_apart():
    assert measure_cost(spectrograms()).is_cheap
    assert SampleCost(1e-6, 0, 4, False).is_cheap
    assert SampleCost(2e-3, 0, 4, False).is_costly and not SampleCost(2e-3, 0, 4, False).waits
    assert SampleCost(2e-3, 1.8e-3, 4, False).waits
    assert measure_cost(Computed(0)).nbytes == 0


def test_an_iterable_dataset_is_not_asked_to_be_shuffled():
    class Numbers(IterableDataset):
        def __iter__(self):
            return iter(range(5))

    config = DataLoaderConfig(batch_size=2, num_workers=0)
    batches = DataLoaderFactory.create_dataloader(Numbers(), config)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
