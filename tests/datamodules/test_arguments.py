"""A wrong value is refused where it enters, in a sentence that names the argument."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import penstock
from penstock import (
    ChunkedTraining,
    TrainerLoader,
    UniversalDataModule,
    build_steering_directory,
    create_loader,
    set_epoch,
    validate_first_batch,
)
from penstock.datamodules import SequenceDataset, TBPTTDataLoader
from penstock.distributed import agree, agreed, together
from penstock.loaders import ReplayLoader

COUNT = [True, 1.0, "3", -1, 10**30, [1]]
SIZE = [*COUNT, 0]
FLAG = [1, "yes", None]
SHARE = [True, "0.2", -0.1, 1.0, float("nan"), 10**30]
SEED = [True, 1.5, "7", -1, 1 << 64]


class Digits(SequenceDataset):
    _name_ = "digits-of-arguments"

    def setup(self):
        self.dataset_train = [(torch.zeros(1), 0)] * 8


def module(**options):
    return UniversalDataModule(torch.arange(8), **({"num_workers": 0} | options))


def digits(**options):
    return Digits(**options)


def replay(**options):
    given = {"batch_size": 2, "num_workers": 0, "collate_fn": None, "seed": 1}
    return ReplayLoader(iter([1, 2]), **(given | options))


def tbptt(**options):
    return TBPTTDataLoader([(torch.zeros(4, 1), 0)] * 2, 1, **({"overlap_len": 1} | options))


def in_a_block(**options):
    with together(**options):
        pass


@pytest.fixture(scope="module")
def steering(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steering")
    build_steering_directory(folder, pairs=20, embedding_dim=4)

    def create(**options):
        return create_loader(folder, "train", **({"batch_size": 2} | options))

    return create


CASES = {
    module: {
        "batch_size": [*SIZE, None],
        "num_workers": [*COUNT, None],
        "val_split": [*SHARE, None],
        "seed": SEED,
        "keep_empty_text": FLAG,
        "data_collator": [3, "pad"],
        "text_field": [3, True],
        "executor": ["fibers", 3],
    },
    digits: {
        "train_chunk_size": SIZE,
        "val_chunk_size": SIZE,
        "chunk_seed": SEED,
        "chunk_shuffle": FLAG,
        "val_cycle": FLAG,
        "chunk_order": ["random", 1, None],
        "loader": [3, "batch_size"],
    },
    ChunkedTraining: {
        "train_chunk_size": SIZE,
        "val_chunk_size": SIZE,
        "seed": SEED,
        "shuffle": FLAG,
        "order": ["random", 1, None],
        "val_cycle": FLAG,
        "cycle": FLAG,
        "max_passes": SIZE,
        "start_chunk": COUNT,
    },
    replay: {
        "batch_size": [*SIZE, None],
        "num_workers": [*COUNT, None],
        "seed": SEED,
        "evaluation": FLAG,
        "collate_fn": [3],
    },
    tbptt: {"chunk_len": [*SIZE, None], "overlap_len": [*SIZE, None]},
    in_a_block: {"grace_seconds": [True, "30", -1, float("inf"), None]},
}
TABLE = [
    (make, name, value)
    for make, names in CASES.items()
    for name, values in names.items()
    for value in values
]
STEERING = {
    "batch_size": [*SIZE, None],
    "num_workers": [*COUNT, None],
    "epoch": [*COUNT, None],
    "distributed": FLAG,
    "pin_memory": FLAG,
    "drop_last": [1, "yes"],
    "seed": SEED,
}


@pytest.mark.parametrize(("make", "name", "value"), TABLE)
def test_a_wrong_value_is_refused_by_name(make, name, value):
    options = {name: value} if make is not tbptt else {"chunk_len": 2, name: value}
    with pytest.raises(ValueError, match=name) as refused:
        make(**options)
    assert isinstance(refused.value, penstock.PenstockError)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n in STEERING for v in STEERING[n]])
def test_a_wrong_value_of_create_loader_is_refused_by_name(steering, name, value):
    with pytest.raises(ValueError, match=name) as refused:
        steering(**{name: value})
    assert isinstance(refused.value, penstock.PenstockError)


def test_numbers_of_numpy_are_numbers(steering):
    one, two = np.int64(1), np.int32(2)
    assert len(module(batch_size=two, val_split=np.float32(0.5)).train_dataloader()) == 2
    assert len(steering(batch_size=two, num_workers=np.int64(0), epoch=one)) == 8
    assert ChunkedTraining(two, seed=one).explicit_train_chunk_size == 2


@pytest.mark.parametrize("loader", [None, 3, [1, 2], "loader"])
def test_what_is_no_loader_is_refused(loader):
    with pytest.raises(ValueError, match="pass a Penstock loader"):
        agree(loader)
    with pytest.raises(ValueError, match="give a Penstock loader"):
        TrainerLoader(loader)
    with pytest.raises(ValueError, match="make must be a function"):
        agreed(loader)


def test_what_has_no_epochs_or_batches_is_refused(steering):
    for epoch in (*COUNT, None):
        with pytest.raises(ValueError, match="epoch"):
            set_epoch(steering(), epoch)
    with pytest.raises(ValueError, match="loader must be a loader"):
        validate_first_batch(3)


@pytest.mark.parametrize("state", [None, [], "state", {}, {"format": 1}])
def test_what_is_no_state_is_refused(state):
    for made in (module(), digits(), replay()):
        with pytest.raises(penstock.StateError, match="state_dict must"):
            made.load_state_dict(state_dict=state)


@pytest.mark.parametrize("wrong", [{"epoch": -1}, {"batches": "3"}, {"epoch": None}])
def test_a_state_of_a_stream_with_wrong_numbers_is_refused(wrong):
    loader = replay()
    with pytest.raises(penstock.StateError, match=next(iter(wrong))):
        loader.load_state_dict(loader.state_dict() | wrong)


@pytest.mark.parametrize("kind", [UniversalDataModule, SequenceDataset, ReplayLoader])
def test_the_parameter_of_load_state_dict_has_torchs_name(kind):
    assert [*inspect.signature(kind.load_state_dict).parameters][1] == "state_dict"
