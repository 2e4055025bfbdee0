"""Every training loop: stopped in mid-epoch and resumed in a new process, exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from penstock.datamodules import UniversalDataModule
from penstock.errors import ConfigError, StateError
from penstock.integrations.huggingface import TrainerLoader
from penstock.loaders import ChunkedDataLoader

PROGRAM = Path(__file__).with_name("adapters_program.py")
TRAINED = 37  # samples; 10 batches an epoch
SAVED = 14  # batches of the first run that are in its checkpoint

LOOPS = {
    "plain": SAVED,
    "lightning": SAVED,
    "lightning_alone": SAVED,
    "lightning_hooks": SAVED,
    "pytorch_lightning_alone": SAVED,
    "trainer": 10 + 2 * 3,  # 6 optimizer steps: an epoch of 4, and two of three batches
    "trainer_workers": 10 + 2 * 3,
    "accelerated": SAVED,
}
LIGHTNING = ("lightning", "lightning_alone", "lightning_hooks", "pytorch_lightning_alone")


def run(commands, directory: Path, *phases: str) -> None:
    done = commands.program(directory, PROGRAM, directory, *phases)
    assert done.code == 0, done.err[-3000:]


@pytest.fixture(scope="module")
def runs(commands, tmp_path_factory) -> dict:
    directory = tmp_path_factory.mktemp("adapters")
    run(commands, directory, "whole", "begin")
    run(commands, directory, "resume")
    return {path.stem: json.loads(path.read_text()) for path in directory.glob("*.json")}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_run_resumed_in_mid_epoch_in_a_new_process_sees_what_an_uninterrupted_one_sees(
    runs, loop
):
    whole, begun, rest = (runs[phase][loop][0] for phase in ("whole", "begin", "resume"))
    assert len(whole) == 30
    for epoch in range(3):
        seen = [sample for batch in whole[10 * epoch : 10 * epoch + 10] for sample in batch]
        assert len(set(seen)) == len(seen) == TRAINED
    assert len(begun) > LOOPS[loop]  # it went on after the checkpoint, in vain
    assert begun[: LOOPS[loop]] + rest == whole


@pytest.mark.parametrize("loop", LOOPS)
def test_its_weights_are_those_of_an_uninterrupted_run(runs, loop):
    assert runs["resume"][loop][1] == runs["whole"][loop][1]


@pytest.mark.parametrize("loop", LIGHTNING)
def test_lightning_validates_the_same_samples_after_every_epoch(runs, loop):
    scored = runs["whole"][loop][2]
    assert len(scored) == 3 * 9 and scored[:9] == scored[9:18] == scored[18:]
    assert runs["resume"][loop][2] == scored[:18]  # after the epochs that it ended


def test_all_loops_see_the_same_samples(runs):
    streams = {json.dumps(runs["whole"][loop][0]) for loop in LOOPS}
    assert len(streams) == 1


# -- what transformers' Trainer is given


def test_batches_are_addressed_so_that_whatever_skips_gets_the_right_ones():
    from accelerate.data_loader import skip_first_batches

    module = UniversalDataModule(torch.arange(30), batch_size=4, val_split=0, num_workers=0)
    epochs = [[batch.tolist() for batch in module.train_dataloader()] for _ in range(3)]
    given = TrainerLoader(module.train_dataloader())
    given.set_epoch(2)
    skipped = skip_first_batches(given, 3)
    assert [batch.tolist() for batch in skipped] == epochs[2][3:]
    given.set_epoch(0)
    assert [batch.tolist() for batch in given] == epochs[0]
    assert len(given) == 8 and len(given.dataset) == 30


def test_skipping_into_a_loader_as_it_is_would_get_the_wrong_ones_and_is_refused():
    """Why there is a `TrainerLoader`: nobody tells a loader which epoch is resumed."""
    from accelerate.data_loader import skip_first_batches

    resumed = skip_first_batches(ChunkedDataLoader(torch.arange(30), 4, shuffle=True), 3)
    with pytest.raises(StateError, match="cannot iterate the batch sampler"):
        next(iter(resumed))


def test_a_trainers_epoch_cannot_be_a_chunk():
    with pytest.raises(ConfigError, match="loader without chunk_size"):
        TrainerLoader(ChunkedDataLoader(torch.arange(8), 2, chunk_size=2))


def test_a_trainer_needs_a_loader_that_seeks():
    with pytest.raises(ConfigError, match="a list cannot seek"):
        TrainerLoader([1, 2])
