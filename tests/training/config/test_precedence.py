"""Which of several keys decides: the seed's configurations, and limits in two places."""

import re
from pathlib import Path

import pytest
import torch

from penstock.loaders.chunk_settings import ChunkSettings
from penstock.training.config import read_settings
from penstock.training.config.settings import TRAIN_DEFAULTS
from tests.training.config.trees import written

BOTH = {"train_chunk_size": 2000, "val_chunk_size": 200}
LIMITS = {"limit_train_batches": 2000, "limit_val_batches": 200}


@pytest.mark.parametrize("section", ["train", "trainer"])
@pytest.mark.parametrize("given", [{}, {"train_chunk_size": 2000}, {"val_chunk_size": 200}, BOTH])
def test_the_four_configurations_of_the_seed(given, section, tmp_path):
    lines = [f"  {name}: {size}" for name, size in given.items()]
    limits = [f"  {name}: {value}" for name, value in LIMITS.items()]
    if section == "train":
        text = "\n".join(["train:", *lines, *limits])
    else:
        text = "\n".join(["train:", *lines, "trainer:", *limits])
    settings = read_settings(written(tmp_path, run=f"{text}\nloader:\n  batch_size: 32\n"))
    assert vars(settings.train) == TRAIN_DEFAULTS | given
    assert ChunkSettings.of_config(settings) == ChunkSettings(**given)
    assert settings.trainer == LIMITS  # the callback that cuts chunks says that it ignores them
    assert settings.notes == ()


def test_every_key_about_chunks_reaches_those_who_cut_them(tmp_path):
    text = "train: {train_chunk_size: 4, val_chunk_size: 5, chunk_seed: 6, chunk_shuffle: false, "
    text += "chunk_order: block, val_cycle: true, cycle: false, max_passes: 1, seed: 8}\n"
    settings = read_settings(written(tmp_path, run=text))
    expected = ChunkSettings(4, 5, 6, False, "block", val_cycle=True, cycle=False, max_passes=1)
    assert ChunkSettings.of_config(settings) == expected


def test_limits_under_trainer_win_with_one_note(tmp_path):
    text = "train: {limit_train_batches: 5, limit_val_batches: 6}\n"
    text += "trainer: {limit_train_batches: 7, limit_test_batches: 8}\n"
    settings = read_settings(written(tmp_path, run=text))
    assert settings.trainer == {
        "limit_train_batches": 7,
        "limit_val_batches": 6,
        "limit_test_batches": 8,
    }
    assert len(settings.notes) == 1 and "limit_train_batches" in settings.notes[0]


def test_a_limit_of_null_is_none(tmp_path):
    text = "train: {limit_train_batches: 5}\ntrainer: {limit_train_batches: null}\n"
    settings = read_settings(written(tmp_path, run=text))
    assert settings.trainer == {"limit_train_batches": 5} and not settings.notes


def test_chunk_sizes_may_be_given_to_the_dataset(tmp_path):
    path = written(tmp_path, run="dataset: {_name_: x, train_chunk_size: 4, val_chunk_size: 5}\n")
    sizes = {"train_chunk_size": 4, "val_chunk_size": 5}
    assert vars(read_settings(path).train) == TRAIN_DEFAULTS | sizes
    settings = read_settings(path, ["train.train_chunk_size=9"])
    assert settings.train.train_chunk_size == 9 and len(settings.notes) == 1


def test_an_accelerator_that_is_not_there_becomes_the_cpu(tmp_path):
    path = written(tmp_path, run="trainer: {accelerator: gpu, devices: 8}\n")
    settings = read_settings(path)
    if torch.accelerator.is_available():
        assert settings.trainer["accelerator"] == "gpu"
    else:
        assert settings.trainer == {"accelerator": "cpu", "devices": 1}
        assert len(settings.notes) == 1
    assert read_settings(path, ["trainer.accelerator=cpu"]).trainer["devices"] == 8


def test_loggers_and_callbacks_may_be_written_under_trainer(tmp_path):
    text = "trainer: {logger: false, callbacks: [{_target_: a.B}], enable_checkpointing: false}\n"
    settings = read_settings(written(tmp_path, run=text))
    assert settings.logger is False and settings.callbacks == [{"_target_": "a.B"}]
    assert settings.trainer == {}
    assert [note for note in settings.notes if "enable_checkpointing" in note] == [*settings.notes]


def test_defaults_are_as_the_guide_says():
    guide = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    table = guide.partition("### train")[2].partition("\n### ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]*?)`? \|", table, re.M))
    words = {"None": "null", "True": "true", "False": "false"}
    for name, value in TRAIN_DEFAULTS.items():
        value = str(value)
        assert documented[name] == words.get(value, value), name
