"""Batches from storage are the samples the plan names, whatever the storage and the geometry."""

import json

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.loaders import ChunkedDataLoader
from penstock.loaders.stream import StreamLoader
from penstock.order import BlockOrder
from penstock.testing import (
    WatchedSource,
    assert_covers,
    assert_resumes_everywhere,
    assert_topology_free,
)

DTYPES = ["u1", "i2", "i8", "f2", "f4", "f8", "c8", "?"]


@st.composite
def geometries(draw, *, worlds=(1, 2, 3, 4), longest=160):
    """A dataset, and a way to read it that is possible."""
    samples = draw(st.integers(8, longest))
    world = draw(st.sampled_from(worlds))
    drop_last = draw(st.booleans())
    most = max(2, samples // world if drop_last else samples)
    batch = draw(st.integers(2, min(24, most)))
    return {
        "samples": samples,
        "world_size": world,
        "batch_size": batch,
        "drop_last": drop_last,
        "block_samples": draw(st.integers(1, samples + 3)),
        "window_blocks": draw(st.integers(1, 9)),
        "lanes": draw(st.integers(1, 6)),
        "chunk_size": draw(st.none() | st.integers(1, 7)),
        "steps": draw(st.integers(1, 4)),
        "seed": draw(st.integers(0, 2**32)),
        "shuffle": draw(st.sampled_from([True, True, True, False])),
    }


def rows_of(samples, steps, width=3, dtype="i8"):
    """An array with N samples of ``steps`` rows, all values different where they can be."""
    shape = (samples + steps - 1, width)
    return np.arange(shape[0] * width).reshape(shape).astype(dtype)


def gathered(array, indices, steps):
    """The samples at these indices, from memory."""
    if steps == 1:
        return torch.from_numpy(array[indices])
    return torch.from_numpy(np.stack([array[i : i + steps] for i in indices]))


def expect_epochs(loader, arrays, epochs=2):
    """Every batch is what ``samples_at`` says, gathered from memory."""
    seen = 0
    while (state := loader.state_dict())["epoch"] < epochs:
        step = loader.position.plan.steps.step_of(state["position"])
        for i, batch in enumerate(loader):
            wanted = loader.samples_at(step + i, state["epoch"])
            batch = batch if isinstance(batch, dict) else {"": batch}
            assert batch.keys() == arrays.keys()
            for name, array in arrays.items():
                want = gathered(array, wanted, loader.steps)
                assert batch[name].dtype == want.dtype
                assert torch.equal(batch[name], want)
            seen += 1
    return seen


def split(options):
    options = dict(options)
    return options.pop("samples"), options.pop("world_size"), options


@settings(max_examples=8)
@given(geometries(), st.sampled_from(DTYPES), st.booleans())
def test_every_batch_is_what_the_plan_says_on_every_rank(options, dtype, mapped):
    samples, world, options = split(options)
    array = rows_of(samples, options["steps"], dtype=dtype)
    source = array if mapped else WatchedSource(array)
    for rank in range(world):
        with StreamLoader(source, rank=rank, world_size=world, **options) as loader:
            assert expect_epochs(loader, {"": array}) > 0


@settings(max_examples=12)
@given(geometries(longest=60))
def test_ranks_together_cover_every_sample_once_an_epoch(options):
    samples, world, options = split(options)
    array = np.arange(samples + options["steps"] - 1)

    def make(rank, world_size):
        return StreamLoader(WatchedSource(array), rank=rank, world_size=world_size, **options)

    whole = options["batch_size"] * world
    assert_covers(
        make,
        samples,
        world_size=world,
        dropped=samples % whole if options["drop_last"] else 0,
        ids=lambda batch: batch if options["steps"] == 1 else batch[:, 0],
    )


@settings(max_examples=8)
@given(geometries(worlds=(1, 2, 3), longest=30))
def test_resuming_anywhere_gives_exactly_the_rest(options):
    samples, world, options = split(options)
    array = rows_of(samples, options["steps"], width=1)

    def make():
        return StreamLoader(WatchedSource(array), rank=world - 1, world_size=world, **options)

    assert_resumes_everywhere(make)


@settings(max_examples=15)
@given(geometries(worlds=(1,), longest=60), st.data())
def test_a_state_goes_on_on_another_world_size_and_batch_size(options, data):
    samples, _, options = split(options)
    options["drop_last"] = False
    array = np.arange(samples + options["steps"] - 1)
    first = StreamLoader(array, **options)
    seen = []
    with first:
        for batch in first:
            seen += batch.reshape(len(batch), -1)[:, 0].tolist()
            if data.draw(st.booleans()):
                break
    state = json.loads(json.dumps(first.state_dict()))
    assume(state["epoch"] == 0)  # it did not run to the end
    world = data.draw(st.integers(1, 3))
    assume(not 0 < samples - state["position"] < world)
    options["batch_size"] = data.draw(st.integers(2, 9))
    options["chunk_size"] = None
    adopting = {**options, "block_samples": None, "window_blocks": None, "lanes": None}
    for rank in range(world):
        loader = StreamLoader(array, rank=rank, world_size=world, **adopting)
        with loader:
            loader.load_state_dict(state)
            for batch in loader:
                seen += batch.reshape(len(batch), -1)[:, 0].tolist()
            assert loader.state_dict()["epoch"] == 1
    assert sorted(seen) == list(range(samples))


@settings(max_examples=15)
@given(geometries(worlds=(1,)), st.sampled_from([4, 8, 12]))
def test_the_same_global_batches_for_every_split_over_ranks(options, whole):
    samples, _, options = split(options)
    del options["batch_size"]
    options["drop_last"] = False
    array = np.arange(samples + options["steps"] - 1)

    def make(rank, world_size, batch_size):
        return StreamLoader(array, batch_size, rank=rank, world_size=world_size, **options)

    assert_topology_free(
        make,
        samples,
        global_batch=whole,
        worlds=[1, 2],
        ids=lambda batch: batch.reshape(len(batch), -1)[:, 0],
    )


@settings(max_examples=12)
@given(geometries())
def test_threads_and_inline_deliver_the_same_batches(options):
    samples, world, options = split(options)
    options |= {"shuffle": True, "steps": 1}
    array = rows_of(samples, 1)
    order = BlockOrder(
        samples,
        options["seed"],
        options["block_samples"],
        options["window_blocks"],
        options["lanes"],
    )
    ranks = {"rank": world - 1, "world_size": world}
    shared = {name: options[name] for name in ("batch_size", "chunk_size", "drop_last", "seed")}
    inline = ChunkedDataLoader(torch.from_numpy(array), order=order, **shared, **ranks)
    with StreamLoader(WatchedSource(array), **options, **ranks) as stream, inline:
        for _ in range(3):
            ours, theirs = list(stream), list(inline)
            assert len(ours) == len(theirs) > 0
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
            one, other = stream.state_dict(), inline.state_dict()
            assert one["position"] == other["position"] and one["epoch"] == other["epoch"]


@settings(max_examples=15)
@given(geometries(longest=70))
def test_an_evaluation_loader_gives_everything_in_order_each_time(options):
    samples, world, options = split(options)
    assume(samples >= world)
    options |= {"evaluation": True, "chunk_size": None}
    array = np.arange(samples + options["steps"] - 1)
    loaders = [
        StreamLoader(WatchedSource(array), rank=rank, world_size=world, **options)
        for rank in range(world)
    ]
    for loader in loaders:
        next(iter(loader))  # and left
    for _ in range(2):
        steps = zip(*loaders, strict=True)
        seen = [
            i
            for parts in steps
            for part in parts
            for i in part.reshape(len(part), -1)[:, 0].tolist()
        ]
        assert seen == list(range(samples))
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("shuffle", [True, False])
def test_named_fields_of_several_dtypes_stay_together(shuffle):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.standard_normal((403, 2, 3)).astype("f4"),
        "y": np.arange(403),
        "mask": rng.integers(0, 2, (403, 5)).astype(bool),
    }
    for source in (arrays, WatchedSource(arrays)):
        options = {"block_samples": 10, "window_blocks": 4, "shuffle": shuffle}
        with StreamLoader(source, 32, **options) as loader:
            assert expect_epochs(loader, arrays) == 24


def test_a_list_of_sources_is_one_after_the_other():
    parts = [np.arange(100), np.arange(100, 137), np.arange(137, 400)]
    with StreamLoader(parts, 16, block_samples=9, window_blocks=3) as loader:
        expect_epochs(loader, {"": np.arange(400)})


@pytest.mark.proof
@settings(max_examples=600)
@given(geometries(worlds=(1, 2, 3, 4, 5, 8), longest=700), st.sampled_from(DTYPES), st.booleans())
def test_many_more_geometries_deliver_what_the_plan_says(options, dtype, mapped):
    samples, world, options = split(options)
    assume(samples >= world * options["batch_size"])
    array = rows_of(samples, options["steps"], dtype=dtype)
    source = array if mapped else WatchedSource(array)
    for rank in range(world):
        with StreamLoader(source, rank=rank, world_size=world, **options) as loader:
            assert expect_epochs(loader, {"": array}, epochs=3) > 0


@pytest.mark.proof
@settings(max_examples=60)
@given(geometries(worlds=(1, 2, 3), longest=60))
def test_many_more_geometries_resume_anywhere(options):
    samples, world, options = split(options)
    array = rows_of(samples, options["steps"], width=1)
    ranks = {"rank": 0, "world_size": world}
    assert_resumes_everywhere(lambda: StreamLoader(WatchedSource(array), **ranks, **options))
