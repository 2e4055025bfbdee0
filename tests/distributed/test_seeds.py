"""A seed that is drawn is drawn once for all ranks, whenever the ranks appear."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import (
    ChunkedDataLoader,
    PlanError,
    RandomChunkLoader,
    StreamLoader,
    build_steering_directory,
)
from penstock.loaders.partition import validation_loader
from tests.distributed.seeds_program import SAMPLES, cases

PROGRAM = Path(__file__).with_name("seeds_program.py")
SAME_ON_ALL = {"sampler", "module, iterable", "steering"}  # not shared out to ranks
SPLIT_AT_ONCE = {"sequence", "yaml, source"}  # samples are chosen when it is made
REFUSED = "seed=None was drawn before the process group was created"


@pytest.fixture(scope="module")
def folder(commands, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    np.save(folder / "numbers.npy", np.arange(SAMPLES))
    build_steering_directory(folder / "steering", pairs=40, embedding_dim=4)
    done = commands.program(folder, PROGRAM, folder)
    assert done.code == 0, done.err[-4000:]
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("when", ["late", "early"])
@pytest.mark.parametrize("name", [*cases(Path())])
def test_all_ranks_use_one_seed(ranks, when, name):
    first, second = (rank[when][name] for rank in ranks)
    if when == "early" and name in SPLIT_AT_ONCE:
        assert first == second and REFUSED in first
        return
    assert isinstance(first, dict), first
    assert first.keys() == second.keys()
    train = [*first["train"], *second["train"]]
    if name in SAME_ON_ALL:
        assert first["train"] == second["train"] != []
    else:
        assert len(set(train)) == len(train) > 0  # every sample on one rank only
    assert not {*train} & {*first.get("val", ()), *second.get("val", ())} or "yaml" in name
    if first.get("val"):
        assert not {*first["val"]} & {*second["val"]}


@pytest.mark.parametrize("name", sorted(cases(Path()).keys() - {"steering"}))  # draws no seed
def test_what_was_used_before_the_group_is_refused_on_every_rank(ranks, name):
    for rank in ranks:
        assert REFUSED in rank["used"][name]


def test_a_rank_that_does_not_come_is_named(folder):
    assert "rank 0 did not share one in time" in json.loads((folder / "waited.json").read_text())


@pytest.mark.parametrize("make", [ChunkedDataLoader, StreamLoader, validation_loader])
def test_ranks_that_are_passed_in_need_a_seed_that_is_passed_in(make):
    given = {"rank": 1, "world_size": 2}
    numbers = torch.arange(40) if make is not StreamLoader else np.arange(40)
    with pytest.raises(PlanError, match="pass the same seed= on every rank"):
        make(numbers, 4, seed=None, **given)
    assert len(list(make(numbers, 4, seed=42, **given))) == 5
    assert len(list(make(numbers, 4, seed=None, rank=0, world_size=1))) == 10


def test_chunks_for_ranks_that_are_passed_in_need_a_seed_that_is_passed_in():
    make = partial(RandomChunkLoader, lambda a, b: np.arange(a, b), 40, 10)
    with pytest.raises(PlanError, match="pass the same seed= on every rank"):
        make(seed=None, rank=1, world_size=2)
    with make(seed=42, rank=1, world_size=2) as loader:
        loader.start_epoch(2)
        assert len(loader.get_next_chunk()[0]) == 10
