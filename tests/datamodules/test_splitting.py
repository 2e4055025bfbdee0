"""Splits: a keyed shuffle cut in two, of every kind of data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from penstock.datamodules.inputs import KeyedIndices, split, split_sizes, without_empty_text
from penstock.errors import ConfigError
from penstock.sources import MemorySource
from penstock.sources.base import ComposedSource

sizes = st.integers(2, 300)
shares = st.floats(0.001, 0.999)
keys = st.integers(0, 2**64 - 1)


def kinds(samples: int) -> dict:
    datasets = pytest.importorskip("datasets")
    numbers = np.arange(samples)
    return {
        "list": numbers.tolist(),
        "array": numbers,
        "tensor": torch.from_numpy(numbers),
        "torch dataset": TensorDataset(torch.from_numpy(numbers)),
        "hugging face": datasets.Dataset.from_dict({"i": numbers}),
        "source": MemorySource(numbers),
    }


def members(side) -> list[int]:
    if isinstance(side, ComposedSource):
        out = np.empty(len(side), np.int64)
        side.read(0, len(side), {"": out})
        return out.tolist()
    values = [side[i] for i in range(len(side))]
    values = [each["i"] if isinstance(each, dict) else each for each in values]
    return [int(each[0] if isinstance(each, tuple) else each) for each in values]


@given(sizes, shares)
def test_both_sides_have_a_sample_and_sizes_are_rounded(samples, share):
    train, validated = split_sizes(samples, share)
    assert train + validated == samples and train >= 1 and validated >= 1
    assert abs(validated - samples * share) <= 1


@pytest.mark.parametrize(
    ("samples", "share", "sizes"),
    [(100, 0.2, (80, 20)), (10, 0.9, (1, 9)), (100, 0.9, (10, 90)), (2, 0.01, (1, 1))],
)
def test_sizes_that_cutting_down_the_training_side_got_wrong(samples, share, sizes):
    assert split_sizes(samples, share) == sizes


@given(sizes, keys, st.data())
def test_keyed_indices_are_a_sequence_of_the_shuffle(samples, key, data):
    cut = data.draw(st.integers(1, samples - 1))
    first = KeyedIndices(samples, key=key, start=0, stop=cut)
    second = KeyedIndices(samples, key=key, start=cut, stop=samples)
    assert sorted([*first, *second]) == list(range(samples))
    assert np.asarray(first).tolist() == list(first) == first[:]
    assert first[-1] == first[len(first) - 1]
    assert all(type(index) is int for index in second)


@pytest.mark.parametrize("kind", kinds(2))
def test_every_kind_is_split_by_a_shuffle_that_stays_the_same(kind):
    data = kinds(100)[kind]
    train, validated = split(data, 0.2, seed=7)
    assert (len(train), len(validated)) == (80, 20)
    held = members(train), members(validated)
    assert sorted(held[0] + held[1]) == list(range(100))
    assert sorted(held[1]) != list(range(80, 100))  # not the tail
    assert max(held[1]) - min(held[1]) > 40  # but from all over
    again = split(kinds(100)[kind], 0.2, seed=7)
    assert (members(again[0]), members(again[1])) == held
    other = split(data, 0.2, seed=8)
    assert sorted(members(other[1])) != sorted(held[1])


def test_all_kinds_but_sources_are_split_alike():
    sides = [
        sorted(members(split(data, 0.3, seed=1)[1]))
        for kind, data in kinds(50).items()
        if kind != "source"
    ]
    assert all(side == sides[0] for side in sides)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan")])
def test_a_share_that_leaves_nothing_to_train_on_is_refused(share):
    with pytest.raises(ConfigError, match=r"val_split must be (in \[0, 1\)|finite)"):
        split_sizes(10, share)


@pytest.mark.parametrize("samples", [0, 1])
def test_too_few_samples_to_split_are_refused_with_what_to_do(samples):
    with pytest.raises(ConfigError, match=r"needs 2 samples or more.*val_data=, or val_split=0"):
        split_sizes(samples, 0.2)


def test_rows_without_the_text_field_are_dropped_like_empty_ones():
    rows = [{"text": "a"}, {"label": 1}, {"text": " "}, {"text": None}]
    assert without_empty_text(rows, ["text"]) == [{"text": "a"}]
