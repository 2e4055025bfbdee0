"""A file alone, in a tree, with overrides: what is read, and what Hydra leaves behind."""

import os

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.version import VersionBase

from penstock.errors import ConfigError
from penstock.training.config import read_settings
from tests.training.config.trees import S4, written

PLAIN = """\
    train:
      train_chunk_size: 2000
      val_chunk_size: 200
    trainer:
      max_epochs: ${train.val_chunk_size}
    loader: {batch_size: 32}
"""


def test_a_plain_file_needs_no_tree(tmp_path):
    settings = read_settings(written(tmp_path, plain=PLAIN))
    assert settings.train.train_chunk_size == 2000
    assert settings.trainer == {"max_epochs": 200}
    assert settings.loader == {"batch_size": 32}
    assert settings.run_dir.as_posix() == "runs/plain"
    assert settings.notes == ()


def test_overrides_change_add_and_remove(tmp_path):
    path = written(tmp_path, plain=PLAIN)
    overrides = ["train.train_chunk_size=3", "train.chunk_seed=7", "+loader.num_workers=2"]
    settings = read_settings(path, [*overrides, "~trainer", "run_dir=here", "model={a: [1, 2]}"])
    assert (settings.train.train_chunk_size, settings.train.chunk_seed) == (3, 7)
    assert settings.loader == {"batch_size": 32, "num_workers": 2}
    assert settings.trainer == {} and settings.run_dir.as_posix() == "here"
    assert settings.model == {"a": [1, 2]}


def test_the_tree_is_found_above_the_file():
    by_entry = read_settings(S4 / "config.yaml", ["experiment=audio/sashimi-musdb18mono"])
    by_file = read_settings(S4 / "experiment" / "audio" / "sashimi-musdb18mono.yaml")
    assert by_entry.root == by_file.root == S4
    for name in ("model", "dataset", "loader", "task", "optimizer", "scheduler", "encoder"):
        assert getattr(by_entry, name) == getattr(by_file, name)
    assert by_file.dataset["__l_max"] == by_file.dataset["sample_len"] == 8192
    assert by_file.model["layer"]["d_state"] == 64  # a group within a group
    assert by_file.optimizer["lr"] == 0.004  # the experiment beats its defaults


def test_groups_are_chosen_on_the_command_line():
    settings = read_settings(S4 / "config.yaml", ["scheduler=cosine_warmup", "trainer=old"])
    assert settings.train.interval == "step"
    assert settings.scheduler["_name_"] == "cosine_warmup"
    assert "gpus" not in settings.trainer
    assert settings.where("trainer.gpus").endswith("old.yaml, line 1")


def test_two_experiments_of_a_tree_never_share_a_run_directory(tmp_path):
    experiment = "# @package _global_\ndefaults: [/experiment/audio/base]\n"
    path = written(
        tmp_path,
        config="train: {seed: 1}\n",
        experiment__audio__one=experiment,
        experiment__audio__two=experiment,
        experiment__audio__base="# @package _global_\ntrain: {seed: 2}\n",
    )
    found = [
        read_settings(path, [f"+experiment=audio/{name}"]).run_dir.as_posix()
        for name in ("one", "two")
    ]
    assert found == ["runs/config/audio/one", "runs/config/audio/two"]
    assert read_settings(path).run_dir.as_posix() == "runs/config"
    itself = read_settings(tmp_path / "experiment" / "audio" / "one.yaml")
    assert itself.run_dir.as_posix() == "runs/one" and itself.train.seed == 2
    chosen = read_settings(S4 / "config.yaml", ["experiment=audio/sashimi-musdb18mono"])
    assert chosen.run_dir.as_posix() == "runs/config/audio/sashimi-musdb18mono"


def test_relative_groups_of_nested_files_find_their_tree(tmp_path):
    path = written(
        tmp_path,
        configs__experiment__mine="# @package _global_\ndefaults: [base]\n",
        configs__experiment__base="# @package _global_\ndefaults:\n  - /loader: small\n",
        configs__loader__small="batch_size: 3\n",
        loader__small="batch_size: 4\n",
    )
    settings = read_settings(path)
    assert settings.root == tmp_path / "configs" and settings.loader == {"batch_size": 3}


def test_a_folder_of_groups_may_be_named(tmp_path):
    path = written(
        tmp_path,
        elsewhere__mine="defaults:\n  - /loader: small\n  - _self_\nloader: {num_workers: 1}\n",
        tree__loader__small="batch_size: 3\n",
        tree__inside="defaults:\n  - loader: small\n",
    )
    outside = read_settings(path, config_dir=tmp_path / "tree")
    assert outside.loader == {"batch_size": 3, "num_workers": 1}
    assert outside.where("loader.batch_size").endswith("small.yaml, line 1")
    assert read_settings("inside.yaml", config_dir=tmp_path / "tree").loader == {"batch_size": 3}


def test_odd_names_of_files_and_folders(tmp_path):
    folder = tmp_path / "my runs, v1.5=x"
    folder.mkdir()
    (folder / "a config.v2.yaml").write_text("loader: {batch_size: 3}\n")
    assert read_settings(folder / "a config.v2.yaml").loader == {"batch_size": 3}


def test_hydra_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, plain=PLAIN, bad="a: [1\n", wrong="trian: {a: 1}\n")
    base = VersionBase.instance().getbase()
    read_settings(path)
    for name, overrides in (("bad", []), ("wrong", []), ("plain", ["a b c"])):
        with pytest.raises(ConfigError):
            read_settings(tmp_path / f"{name}.yaml", overrides)
    assert not GlobalHydra.instance().is_initialized()
    assert VersionBase.instance().getbase() is base
    assert sorted(os.listdir()) == ["bad.yaml", "plain.yaml", "wrong.yaml"]
    assert os.getcwd() == str(tmp_path)


def test_hydra_in_use_stays_in_use(tmp_path):
    path = written(tmp_path, plain=PLAIN)
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        hydra, base = GlobalHydra.instance().hydra, VersionBase.instance().getbase()
        read_settings(path)
        assert GlobalHydra.instance().hydra is hydra
        assert VersionBase.instance().getbase() == base


def test_sections_of_s4_without_effect_are_named_once_each():
    notes = read_settings(S4 / "config.yaml").notes
    for name in ("wandb", "tolerance", "hydra"):
        assert len([note for note in notes if f"section {name!r}" in note]) == 1
    (train,) = [note for note in notes if note.startswith("train: ")]
    for name in ("ema", "state", "layer_decay", "ckpt", "post_init_hook"):
        assert name in train
    for name in ("timer", "params", "model_checkpoint", "rich_progress_bar"):
        assert len([note for note in notes if f"callback {name!r}" in note]) == 1
    assert len(notes) == len(set(notes))


def test_idle_sections_may_be_missing_values_or_lead_nowhere(tmp_path):
    text = "wandb:\n  project: ???\n  key: ${oc.env:NO_SUCH_VARIABLE}\nloader: {batch_size: 1}\n"
    settings = read_settings(written(tmp_path, plain=text))
    assert settings.resolved == {"wandb": {}, "loader": {"batch_size": 1}}
    assert read_settings(settings.path, ["wandb=null"]).notes == ()


def test_a_section_of_the_users_own_may_be_interpolated(tmp_path):
    text = "sizes: {batch: 5}\nloader: {batch_size: '${sizes.batch}'}\n"
    settings = read_settings(written(tmp_path, plain=text))
    assert settings.loader == {"batch_size": 5}
    assert settings.notes == ("section 'sizes' has no effect by itself",)
