"""Arguments of streams and chunks: right, or refused in one sentence that helps."""

import inspect
import re

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from penstock import (
    ChunkedDataLoader,
    RandomChunkLoader,
    StreamLoader,
    calculate_chunk_params,
    sample_batch_within_chunk,
)
from penstock.errors import PenstockError, PlanError, SourceError
from penstock.loaders.stream_settings import NOT_OURS

zarr = pytest.importorskip("zarr")

ARRAY = np.arange(4000).reshape(1000, 4)
OURS = set(inspect.signature(StreamLoader).parameters) - {"not_ours"}


def batches_of(loader):
    with loader:
        return torch.cat([batch.clone() for batch in loader])


# -- torch's arguments


def test_every_argument_of_torch_is_taken_or_refused_with_advice():
    torchs = set(inspect.signature(DataLoader).parameters) - {"dataset"}
    assert torchs <= OURS | set(NOT_OURS)


def test_all_arguments_are_listed_where_none_is_close():
    with pytest.raises(TypeError) as refused:
        StreamLoader(ARRAY, 10, qqqqqq=2)
    assert set(str(refused.value).partition("it takes ")[2].split(", ")) == OURS


@pytest.mark.parametrize("name", NOT_OURS)
def test_an_argument_of_torch_is_refused_with_what_to_pass_instead(name):
    with pytest.raises(PlanError, match=f"StreamLoader has no {name}: ") as refused:
        StreamLoader(ARRAY, 10, **{name: 2})
    advised = re.findall(r"(\w+)=", str(refused.value).split(";")[-1])
    assert all(each in OURS or each == name for each in advised)
    assert advised or "leave it out" in str(refused.value) or "source" in str(refused.value)


ADVICE = [
    {"threads": 4},
    {"memory_budget": "64MB"},
    {"device": "cpu"},
    {"seed": 1},
    {"shuffle": False},
]


@pytest.mark.parametrize("advice", ADVICE, ids=str)
def test_what_is_advised_works(advice):
    loader = StreamLoader(ARRAY, 10, **advice)
    name = next(iter(advice))
    assert getattr(loader, name) == (64_000_000 if name == "memory_budget" else advice[name])
    assert len(batches_of(loader)) == 1000


@pytest.mark.parametrize("name", ["sampler", "order"])
def test_an_order_of_ones_own_is_for_the_other_loader(name):
    with pytest.raises(PlanError, match="use ChunkedDataLoader, which takes"):
        StreamLoader(ARRAY, 10, **{name: "block"})
    assert (
        name in inspect.signature(DataLoader).parameters
        or name in inspect.signature(ChunkedDataLoader).parameters
    )


def test_a_misspelled_argument_is_a_type_error_with_the_right_name():
    with pytest.raises(TypeError, match="no argument 'blok_samples': did you mean 'block_samples'"):
        StreamLoader(ARRAY, 10, blok_samples=5)
    with pytest.raises(TypeError, match="no argument 'xyz': it takes source, batch_size"):
        StreamLoader(ARRAY, 10, xyz=5)


def test_a_torch_dataset_is_referred_to_its_loader():
    dataset = TensorDataset(torch.from_numpy(ARRAY))
    with pytest.raises(SourceError, match=r"use ChunkedDataLoader\(dataset, batch_size\)"):
        StreamLoader(dataset, 10)
    with ChunkedDataLoader(dataset, 10) as loader:  # as advised
        assert len(list(loader)) == 100
    assert len(batches_of(StreamLoader(ARRAY, 10))) == 1000  # the arrays that it reads


def test_collate_fn_has_two_names():
    for name in ("collate_fn", "collate"):
        loader = StreamLoader(ARRAY, 10, shuffle=False, **{name: lambda batch: batch + 1})
        assert torch.equal(batches_of(loader), torch.from_numpy(ARRAY + 1))
        assert loader.collate_fn is loader.collate is not None
    with pytest.raises(PlanError, match="another name for collate_fn: pass one"):
        StreamLoader(ARRAY, 10, collate_fn=abs, collate=abs)


def test_fields_are_chosen_when_a_path_is_opened(tmp_path):
    group = zarr.create_group(tmp_path / "g.zarr", zarr_format=2)
    for name in ("x", "y", "words"):
        values = ARRAY[:, 0] if name != "words" else np.array(["a"] * 1000, "U3")
        array = group.create_array(name, shape=(1000,), dtype=values.dtype, chunks=(100,))
        array[...] = values
    with StreamLoader(tmp_path / "g.zarr", 10, fields=["y"]) as loader:
        assert list(next(iter(loader))) == ["y"]
    with pytest.raises(PlanError, match=r"name the other fields with fields=\[") as refused:
        StreamLoader(tmp_path / "g.zarr", 10)
    assert "'words'" in str(refused.value)
    with StreamLoader(tmp_path / "g.zarr", 10, fields=["x", "y"]) as loader:  # as advised
        assert list(next(iter(loader))) == ["x", "y"]


# -- bad values


BAD = {
    "count": ["8", 2.0, True, -1, [3], 2**70, float("nan"), b"1"],
    "positive": [0],
    "flag": [1, 0, "yes", None, 2.5],
    "function": [3, "abs", [abs]],
    "share": [0, 1, 2.0, "0.9", True],
    "seconds": ["5", -1, True, float("inf"), None],
    "seed": ["1", 1.5, True, -1, 2**64],
    "bytes": [-1, 1.5, None, "lots", True, []],
    "device": ["gpu", 1.5, "cuda:x", []],
}
KINDS = {
    "batch_size": ["count", "positive"],
    "block_samples": ["count", "positive"],
    "window_blocks": ["count", "positive"],
    "chunk_size": ["count", "positive"],
    "steps": ["count", "positive"],
    "lanes": ["count", "positive"],
    "mixing": ["share"],
    "threads": ["count", "positive"],
    "shuffle": ["flag"],
    "drop_last": ["flag"],
    "evaluation": ["flag"],
    "transform": ["function"],
    "collate_fn": ["function"],
    "collate": ["function"],
    "timeout": ["seconds"],
    "seed": ["seed"],
    "memory_budget": ["bytes"],
    "device": ["device"],
}


def bad_values(kinds):
    return [value for kind in kinds for value in BAD[kind]]


@pytest.mark.parametrize("name", KINDS)
def test_a_bad_value_of_a_stream_is_refused_where_it_enters(name):
    for value in bad_values(KINDS[name]):
        with pytest.raises(PenstockError) as refused:
            StreamLoader(ARRAY, **{"batch_size": 10, name: value})
        word = name
        assert word in str(refused.value) and "\n" not in str(refused.value), value


@pytest.mark.parametrize(("name", "other"), [("rank", "world_size"), ("world_size", "rank")])
def test_a_bad_rank_is_refused(name, other):
    for value in ["0", 1.0, True, -1, 2**70]:
        with pytest.raises(PlanError, match=name):
            StreamLoader(ARRAY, 10, **{name: value, other: 1})


def test_a_bad_batch_size_is_refused_later_too():
    with StreamLoader(ARRAY, 10) as loader:
        for value in bad_values(["count", "positive"]):
            with pytest.raises(PlanError, match="batch_size must be"):
                loader.set_batch_size(value)
        assert loader.batch_size == 10


CHUNKS = {
    "total_timesteps": ["count", "positive"],
    "chunk_size": ["count", "positive"],
    "prefetch": ["count", "positive"],
    "align": ["count", "positive"],
    "overlap": ["count"],
    "seed": ["seed"],
}


@pytest.mark.parametrize("name", CHUNKS)
def test_a_bad_value_of_a_chunk_loader_is_refused_where_it_enters(name):
    for value in bad_values(CHUNKS[name]):
        if name == "overlap" and value == 0:
            continue
        with pytest.raises(PlanError, match=f"{name} must be"):
            options = {"total_timesteps": 100, "chunk_size": 10, name: value}
            RandomChunkLoader(lambda a, b: ARRAY[a:b], **options)


def test_other_bad_values_of_a_chunk_loader_are_refused():
    for load_fn in (None, ARRAY, "path"):
        with pytest.raises(PlanError, match="load_fn must be a function of"):
            RandomChunkLoader(load_fn, 100, 10)
    with pytest.raises(PlanError, match="sampling must be one of 'cover', 'uniform'"):
        RandomChunkLoader(lambda a, b: ARRAY[a:b], 100, 10, sampling="random")
    with RandomChunkLoader(lambda a, b: ARRAY[a:b], 100, 10, seed=1) as loader:
        for value in bad_values(["count", "positive"]):
            with pytest.raises(PlanError, match="num_chunks must be"):
                loader.start_epoch(value)


@pytest.mark.parametrize(
    "name", ["total_timesteps", "chunk_size", "batch_size", "data_passes_per_epoch"]
)
def test_bad_chunk_parameters_are_refused(name):
    good = {"total_timesteps": 100, "chunk_size": 10, "batch_size": 5, "data_passes_per_epoch": 1}
    assert calculate_chunk_params(**good)
    for value in bad_values(["count", "positive"]):
        with pytest.raises(PlanError, match=f"{name} must be"):
            calculate_chunk_params(**{**good, name: value})


@pytest.mark.parametrize("name", ["batch_size", "total_steps", "num_neurons_to_zero"])
def test_bad_rollouts_are_refused(name):
    csr = {"wmat_indices": [1, 2, 0], "wmat_indptr": [0, 2, 2, 3]}
    chunk = torch.zeros(100, 3)
    good = {"chunk_data": chunk, "chunk_stim": chunk, **csr, "batch_size": 4, "total_steps": 5}
    good |= {"num_neurons_to_zero": 1, "device": "cpu"}
    assert sample_batch_within_chunk(**good)
    for value in bad_values(["count"]):
        with pytest.raises(PlanError, match=f"{name} must be"):
            sample_batch_within_chunk(**{**good, name: value})
    with pytest.raises(PlanError, match=r"chunk_data must be a tensor \(timesteps, neurons\)"):
        sample_batch_within_chunk(**{**good, "chunk_data": torch.zeros(100)})
