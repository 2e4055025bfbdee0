"""Augmented datasets: random where they should be, identical where they must be."""

import copy
import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from penstock import ChunkedDataLoader
from penstock.datasets import (
    AugmentedDataset,
    StandardizedDataset,
    WorkerSafeAugmentedDataset,
    create_augmented_dataset_wrapper,
)
from penstock.datasets.gather import gather_of
from penstock.errors import ConfigError, PlanError
from penstock.keyed import keyed_generator
from penstock.testing import assert_resumes_everywhere, same_batch
from penstock.transforms import GaussianNoise, SpecAugment

X = torch.rand((30, 1, 16, 24), generator=keyed_generator(1)) * 0.8 + 0.1
Y = torch.arange(30) % 3
SPEC = {"time_mask_param": 6, "freq_mask_param": 5, "p": 0.9}
BOTH = {"spec_augment_params": SPEC, "gaussian_noise_params": {"std": 0.1, "p": 0.9}}


class OneByOne(Dataset):
    """The same samples, one at a time."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return X[index], int(Y[index])


BASES = {"tensors": TensorDataset(X, Y), "one by one": OneByOne()}


def prepared(base="tensors", **options):
    """The chain as it should be: augment raw samples, then standardise a part of them."""
    return StandardizedDataset(
        AugmentedDataset(BASES[base], BOTH, **options), range(1, 28), 0.5, 0.3
    )


def two_epochs(dataset, workers=0, **options):
    if workers:
        options["num_workers"] = workers
    with ChunkedDataLoader(dataset, 4, shuffle=True, **options) as loader:
        return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize("base", BASES)
@given(indices=st.lists(st.integers(0, 29), min_size=1, max_size=9))
def test_samples_a_list_of_them_and_a_batch_are_the_same(base, indices):
    dataset = AugmentedDataset(BASES[base], BOTH)
    single = [dataset[index] for index in indices]
    assert same_batch(default_collate(dataset.__getitems__(indices)), default_collate(single))
    assert same_batch(dataset.__getbatch__(np.array(indices)), default_collate(single))


@pytest.mark.parametrize(("base", "gathers"), [("tensors", True), ("one by one", False)])
def test_a_dataset_around_another_gathers_where_that_one_does(base, gathers):
    for dataset in (prepared(base), AugmentedDataset(BASES[base], BOTH)):
        assert dataset.gathers is gathers  # else a loader could not tell what a sample costs
        assert (gather_of(dataset) is not None) is gathers


def test_label_and_shape_stay():
    dataset = AugmentedDataset(BASES["tensors"], BOTH)
    for index in range(30):
        x, y = dataset[index]
        assert x.shape == X[index].shape and x.dtype == torch.float32 and y == Y[index]
    assert any(not torch.equal(dataset[index][0], X[index]) for index in range(30))


def test_an_epoch_has_its_own_augmentation_and_always_the_same_one():
    dataset = AugmentedDataset(BASES["tensors"], BOTH)
    first = dataset.__getitems__(list(range(30)))
    dataset.set_epoch(1)
    second = dataset.__getitems__(list(range(30)))
    dataset.set_epoch(0)
    assert same_batch(dataset.__getitems__(list(range(30))), first)
    differ = sum(not torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True))
    assert differ > 25


def test_two_seeds_augment_differently_and_equal_samples_too():
    alike = torch.full((10, 1, 16, 24), 0.5)
    one, other = (AugmentedDataset(alike, BOTH, seed=seed) for seed in (1, 2))
    assert not torch.equal(one[0], other[0])
    assert len({one[index].sum().item() for index in range(10)}) > 5


def test_counted_from_the_end_a_sample_is_the_same():
    dataset = AugmentedDataset(BASES["tensors"], BOTH)
    assert same_batch(dataset[-1], dataset[29])
    assert same_batch(dataset.__getitems__([-1, 3]), dataset.__getitems__([29, 3]))


# -- workers

CONTROL = two_epochs(prepared())


def test_the_control_is_augmented_anew_each_epoch():
    by_epoch = [torch.cat([x for x, _ in CONTROL[k : k + 7]]) for k in (0, 7)]
    sums = [set(part.flatten(1).sum(1).tolist()) for part in by_epoch]
    assert [len(part) for part in by_epoch] == [27, 27]
    assert len(sums[0] & sums[1]) < 5  # those that both epochs left as they are


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (2, "fork"), (4, "fork")])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_any_number_of_workers_delivers_identical_batches(base, workers, method):
    options = {"multiprocessing_context": method} if workers else {}
    assert same_batch(two_epochs(prepared(base), workers, **options), CONTROL)


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.proof)])
def test_any_start_method_delivers_identical_batches(method):
    assert same_batch(two_epochs(prepared(), 2, multiprocessing_context=method), CONTROL)


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("base", BASES)
def test_the_large_matrix_of_workers_delivers_identical_batches(base, workers, method):
    found = two_epochs(prepared(base), workers, multiprocessing_context=method)
    assert same_batch(found, CONTROL)


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:This DataLoader will create 8")
def test_eight_workers_for_three_epochs_leak_nothing():
    handles = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert same_batch(two_epochs(prepared(), 8), CONTROL)
    assert len(os.listdir("/proc/self/fd")) <= handles + 2


def test_a_resumed_loader_augments_as_if_never_stopped():
    assert_resumes_everywhere(lambda: ChunkedDataLoader(prepared(), 4, 3))


def test_in_a_stock_loader_the_epoch_reaches_persistent_workers():
    dataset = AugmentedDataset(BASES["one by one"], BOTH)
    loader = DataLoader(dataset, 8, num_workers=2, persistent_workers=True)
    epochs = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        epochs.append(list(loader))
    expected = AugmentedDataset(BASES["one by one"], BOTH)
    expected.set_epoch(1)
    assert same_batch(epochs[1], list(DataLoader(expected, 8)))
    assert same_batch(epochs[0], epochs[2])
    assert not same_batch(epochs[0], epochs[1])


def test_switching_to_evaluation_reaches_persistent_workers():
    dataset = AugmentedDataset(BASES["one by one"], BOTH)
    loader = DataLoader(dataset, 8, num_workers=1, persistent_workers=True)
    assert not torch.equal(torch.cat([x for x, _ in loader]), X)
    dataset.set_training(False)
    assert torch.equal(torch.cat([x for x, _ in loader]), X)
    dataset.training = True
    assert not torch.equal(torch.cat([x for x, _ in loader]), X)


# -- what it is made of


def test_parameters_are_specaugments_keywords_or_two_groups():
    flat = WorkerSafeAugmentedDataset(BASES["tensors"], SPEC)
    assert flat.augment_params == SPEC and flat.training
    assert [type(part) for part in flat.transform.transforms] == [SpecAugment]
    both = AugmentedDataset(BASES["tensors"], BOTH).transform.transforms
    assert [type(part) for part in both] == [SpecAugment, GaussianNoise]
    only = AugmentedDataset(BASES["tensors"], {"gaussian_noise_params": {}}).transform.transforms
    assert [type(part) for part in only] == [GaussianNoise]
    assert len(AugmentedDataset(BASES["tensors"], {}).transform.transforms) == 1


def test_parameters_are_copied_deeply():
    params = copy.deepcopy(BOTH)
    dataset = AugmentedDataset(BASES["tensors"], params)
    before = dataset[3]
    params["gaussian_noise_params"]["std"] = 100
    assert dataset.augment_params == BOTH
    assert same_batch(dataset[3], before)


def test_without_training_samples_are_as_they_were():
    dataset = AugmentedDataset(BASES["tensors"], BOTH, training=False)
    assert torch.equal(dataset.__getbatch__(np.arange(30))[0], X)
    assert torch.equal(dataset[4][0], X[4])
    assert torch.equal(dataset.__getitems__([4])[0][0], X[4])


def test_a_copy_has_switches_of_its_own():
    dataset = AugmentedDataset(BASES["tensors"], BOTH)
    dataset.set_epoch(5)
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert same_batch(other[2], dataset[2])
        other.set_epoch(6)
        assert (other.epoch, dataset.epoch) == (6, 5)


# -- the order of things


def test_noise_before_standardising_saturates_nothing():
    noisy = {"spec_augment_params": None, "gaussian_noise_params": {"p": 1.0}}
    chain = StandardizedDataset(AugmentedDataset(BASES["tensors"], noisy), range(30), 0.5, 0.3)
    plain = StandardizedDataset(BASES["tensors"], range(30), 0.5, 0.3)
    x, reference = (each.__getbatch__(np.arange(30))[0] for each in (chain, plain))
    assert (x < 0).float().mean() == pytest.approx((reference < 0).float().mean().item(), abs=0.01)
    assert ((x == 0) | (x == 1)).float().mean() < 1e-3
    assert (x - reference).std() == pytest.approx(0.02 / 0.3, rel=0.05)


def test_a_clamp_on_standardised_data_is_refused():
    standardised = StandardizedDataset(BASES["tensors"], range(30), 0.5, 0.3)
    clamped = {"gaussian_noise_params": {"clamp": (0, 1)}}
    for base in (standardised, Subset(standardised, [1, 2])):
        with pytest.raises(PlanError, match="would saturate the data"):
            AugmentedDataset(base, clamped)
    AugmentedDataset(BASES["tensors"], clamped)


# -- the wrapper


def test_the_wrapper_recommends_by_samples_per_class():
    dataset = create_augmented_dataset_wrapper(
        TensorDataset(torch.zeros(120, 1, 224, 313), torch.arange(120) % 2), True, True
    )
    masks, noise = dataset.transform.transforms
    assert (masks.time_mask_param, masks.freq_mask_param, masks.p) == (39, 14, 0.8)
    assert (noise.std, noise.p, noise.clamp) == (0.02, 0.8, None)
    assert dataset.training


def test_the_wrapper_asks_subsets_and_wrapped_datasets_for_their_classes():
    base = TensorDataset(torch.zeros(120, 1, 224, 313), torch.zeros(120).long())
    for wrapped in (Subset(base, range(120)), StandardizedDataset(base, range(120), 0, 1)):
        dataset = create_augmented_dataset_wrapper(wrapped, use_spec_augment=True)
        assert dataset.transform.transforms[0].p == 0.9


def test_the_wrapper_does_what_is_chosen():
    base = BASES["tensors"]
    assert create_augmented_dataset_wrapper(base).transform.transforms == ()
    assert torch.equal(create_augmented_dataset_wrapper(base)[3][0], X[3])
    only = create_augmented_dataset_wrapper(base, False, True, BOTH).transform.transforms
    assert [(type(part), part.std) for part in only] == [(GaussianNoise, 0.1)]
    flat = create_augmented_dataset_wrapper(base, True, True, SPEC, training=False)
    assert [type(part) for part in flat.transform.transforms] == [SpecAugment, GaussianNoise]
    assert flat.transform.transforms[0].time_mask_param == 6 and not flat.training
    pickle.dumps(flat)


def test_an_unknown_setting_is_refused_with_what_was_meant():
    with pytest.raises(ConfigError, match="did you mean 'time_mask_param'"):
        AugmentedDataset(BASES["tensors"], {"time_mask_parm": 4})
    with pytest.raises(ConfigError, match="unknown setting of GaussianNoise 'sdt'"):
        AugmentedDataset(BASES["tensors"], {"gaussian_noise_params": {"sdt": 4}})


@pytest.mark.parametrize("index", [-6, -11, 5])
def test_an_index_out_of_range_is_refused_in_every_transformed_dataset(index):
    raw = torch.ones(5, 1, 8, 8)
    standardized = StandardizedDataset(raw, range(5), 0.0, 1.0)
    for dataset in (AugmentedDataset(raw, {"p": 1.0}), standardized):
        assert torch.equal(dataset[-1], dataset[4])
        with pytest.raises(IndexError):
            dataset[index]
        with pytest.raises(IndexError):
            dataset.__getitems__([0, index])
