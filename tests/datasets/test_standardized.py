"""Standardised datasets, and the statistics they are made of."""

import io
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from penstock import ChunkedDataLoader
from penstock import extras as progress_module
from penstock.datasets import (
    StandardizedDataset,
    WorkerSafeStandardizedDataset,
    compute_standardization,
)
from penstock.errors import BatchError, PlanError
from penstock.keyed import keyed_generator
from penstock.sources.statistics import Moments
from penstock.testing import same_batch

X = torch.rand((40, 2, 6, 7), generator=keyed_generator(1)) * 3 + 100
Y = torch.arange(40) % 5
PART = [3, 1, 4, 15, 9, 26, 5, 35, 8]


class OneByOne(Dataset):
    """Samples as numpy arrays and plain integers, one at a time."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return X[index].numpy(), int(Y[index])


class Ragged(Dataset):
    """Spectrograms of unequal length."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.arange(6.0 * (index + 1)).reshape(2, -1), index


BASES = {
    "tensors": TensorDataset(X, Y),
    "one by one": OneByOne(),
    "subset": Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), range(40)),
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_a_sample_is_its_distance_from_the_mean_in_deviations(base):
    dataset = StandardizedDataset(base, PART, 100.0, 2.0)
    assert len(dataset) == len(PART)
    for place, index in enumerate(PART):
        x, y = dataset[place]
        assert torch.allclose(x, (X[index] - 100.0) / (2.0 + 1e-8), rtol=1e-5)
        assert int(y) == Y[index]


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@given(indices=st.lists(st.integers(0, len(PART) - 1), min_size=1, max_size=9))
def test_samples_a_list_of_them_and_a_batch_are_the_same(base, indices):
    dataset = StandardizedDataset(base, PART, [100.0, 101.0], [2.0, 3.0])
    single = [dataset[index] for index in indices]
    assert same_batch(default_collate(dataset.__getitems__(indices)), default_collate(single))
    assert same_batch(dataset.__getbatch__(np.array(indices)), default_collate(single))


def test_samples_of_unequal_shapes_are_standardised_too():
    found = StandardizedDataset(Ragged(), [0, 3], 1.0, 2.0).__getitems__([1, 0])
    assert [x.shape for x, _ in found] == [(2, 12), (2, 3)]
    assert found[1][0][0].tolist() == [-0.5, 0.0, 0.5]


def test_the_attributes_are_the_guides():
    dataset = WorkerSafeStandardizedDataset(
        BASES["tensors"], range(5), np.float32(1.5), np.float64(2)
    )
    assert dataset.base_dataset is BASES["tensors"]
    assert dataset.indices == [0, 1, 2, 3, 4] and type(dataset.indices) is list
    assert dataset.mean == 1.5 and type(dataset.mean) is float
    assert dataset.std == 2 + 1e-8 and type(dataset.std) is float  # once


def test_a_deviation_of_zero_gives_finite_values():
    dataset = StandardizedDataset(
        torch.full((3, 2), 7.0), [0, 1], *compute_standardization(torch.full((3, 2), 7.0), [0, 1])
    )
    assert dataset[0].tolist() == [0.0, 0.0]


def test_it_can_be_pickled_before_and_after_use():
    dataset = StandardizedDataset(BASES["subset"], PART, 100.0, 2.0)
    dataset.__getbatch__(np.array([0]))
    again = pickle.loads(pickle.dumps(dataset))
    assert same_batch(again[2], dataset[2])


def test_a_subset_of_it_and_it_of_a_subset_are_gathered():
    outer = Subset(StandardizedDataset(BASES["tensors"], PART, 100.0, 2.0), [2, 0])
    loader = ChunkedDataLoader(outer, 2)
    assert "one gather a batch" in loader.describe()
    assert same_batch(next(iter(loader)), default_collate([outer[0], outer[1]]))


def test_other_data_or_another_part_has_another_fingerprint():
    base = BASES["tensors"]
    prints = {
        StandardizedDataset(base, PART, 0, 1).fingerprint(),
        StandardizedDataset(base, PART[::-1], 0, 1).fingerprint(),
        StandardizedDataset(TensorDataset(X + 1, Y), PART, 0, 1).fingerprint(),
    }
    assert len(prints) == 3
    assert StandardizedDataset(OneByOne(), PART, 0, 1).fingerprint()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stock_loader_takes_it(workers):
    dataset = StandardizedDataset(BASES["one by one"], PART, 100.0, 2.0)
    found = list(DataLoader(dataset, batch_size=4, num_workers=workers))
    assert [len(y) for _, y in found] == [4, 4, 1]
    assert same_batch(found, list(ChunkedDataLoader(dataset, 4)))


# -- statistics


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_statistics_equal_numpys_on_the_whole_training_part(base):
    mean, std = compute_standardization(base, PART)
    values = X[PART].double().numpy()
    assert mean == pytest.approx(values.mean(), rel=1e-13)
    assert std == pytest.approx(values.std(), rel=1e-12)
    means, stds = compute_standardization(base, PART, per_channel=True)
    assert means == pytest.approx(values.mean((0, 2, 3)), rel=1e-13)
    assert stds == pytest.approx(values.std((0, 2, 3)), rel=1e-12)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=6), st.floats(-1e6, 1e6), st.integers(0, 99)
)
def test_however_the_values_arrive_their_moments_are_the_same(lengths, offset, seed):
    values = np.random.default_rng(seed).normal(offset, 1, (3, sum(lengths)))
    moments = Moments()
    for part in np.split(values, np.cumsum(lengths)[:-1], axis=1):
        moments.add(part)
    assert np.allclose(moments.mean, values.mean(1), rtol=1e-12)
    assert np.allclose(moments.std, values.std(1), rtol=1e-6, atol=1e-9)


def test_a_mean_far_away_costs_no_precision():
    values = torch.tensor([1e8 + 1, 1e8 + 2, 1e8 + 3, 1e8 + 4], dtype=torch.float64).repeat(100)
    assert compute_standardization(values) == (1e8 + 2.5, pytest.approx(1.25**0.5, rel=1e-12))


def test_statistics_never_vary_and_draw_nothing():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    assert compute_standardization(OneByOne(), PART) == compute_standardization(OneByOne(), PART)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_samples_of_unequal_shapes_count_by_their_values():
    everything = np.concatenate([np.arange(6.0 * (i + 1)) for i in range(8)])
    mean, std = compute_standardization(Ragged())
    assert (mean, std) == (pytest.approx(everything.mean()), pytest.approx(everything.std()))


def test_eight_bit_values_are_counted_as_they_are():
    assert compute_standardization(torch.tensor([[0, 255]], dtype=torch.uint8)) == (127.5, 127.5)


def test_the_training_parts_statistics_standardise_it():
    statistics = compute_standardization(BASES["tensors"], PART)
    x, _ = StandardizedDataset(BASES["tensors"], PART, *statistics).__getbatch__(np.arange(9))
    assert x.mean().abs() < 1e-4
    assert x.std(correction=0) == pytest.approx(1, rel=1e-4)


def test_a_bar_is_shown_where_it_is_asked_for_and_its_thread_ends(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress_module.sys, "stderr", screen)
    threads = threading.active_count()
    compute_standardization(OneByOne(), PART)
    assert screen.getvalue() == ""  # nobody looks
    compute_standardization(OneByOne(), PART, progress=True)
    assert "statistics" in screen.getvalue()
    assert threading.active_count() == threads


# -- refusals


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([40], "samples 40 to 40 of 40 samples: indices must be from 0 to 39"),
        ([0, -1], "samples -1 to 0 of 40 samples: indices must be from 0 to 39"),
        ([True, False], "indices must be a flat array of integers, got 1 dimensions of bool"),
        ([[1, 2]], "got 2 dimensions of int64"),
        ([0.5], "got 1 dimensions of float64"),
    ],
)
def test_indices_that_cannot_be_are_refused(indices, message):
    with pytest.raises(PlanError, match=message):
        StandardizedDataset(BASES["tensors"], indices, 0, 1)
    with pytest.raises(PlanError, match=message):
        compute_standardization(BASES["tensors"], indices)


def test_an_index_beyond_the_end_is_refused():
    with pytest.raises(IndexError):
        StandardizedDataset(BASES["tensors"], PART, 0, 1)[9]


def test_statistics_of_nothing_are_refused():
    with pytest.raises(PlanError, match="at least 1 sample"):
        compute_standardization(BASES["tensors"], [])


@pytest.mark.parametrize("base", [TensorDataset, lambda x, y: list(zip(x, y, strict=True))])
def test_a_value_that_is_not_finite_is_named(base):
    broken = X.clone()
    broken[15, 1, 2, 3] = float("nan")
    with pytest.raises(BatchError, match="sample 15 has a value that is not finite"):
        compute_standardization(base(broken, Y), PART)


def test_channels_of_numbers_are_refused():
    with pytest.raises(BatchError, match="per_channel needs samples with an axis of channels"):
        compute_standardization(torch.arange(3.0), per_channel=True)


def test_samples_without_a_tensor_are_refused():
    with pytest.raises(BatchError, match="got dict: convert it in the base dataset"):
        StandardizedDataset([{"x": 1}], [0], 0, 1)[0]
