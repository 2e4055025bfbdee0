"""Checkpoints: whole or not there, found again, refused with what to do."""

from __future__ import annotations

import json
import os
import random
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.datamodules import UniversalDataModule
from penstock.errors import ConfigError
from penstock.loaders import ChunkedDataLoader
from penstock.training import (
    CheckpointError,
    CheckpointManager,
    CheckpointMetadata,
    NoCheckpointError,
    TrainingConfig,
)
from penstock.training.checkpoint_files import REGISTRY, kept, ranked

PROGRAM = Path(__file__).with_name("checkpoint_program.py")


@pytest.fixture
def parts():
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5)


def save_all(manager, parts, losses, **options):
    return [
        manager.save(*parts, epoch, {"val_loss": loss}, **options)
        for epoch, loss in enumerate(losses, start=1)
    ]


# -- laws of retention

values = st.lists(st.floats(-5, 5) | st.just(float("nan")), min_size=1, max_size=12)


@given(values, st.integers(0, 4), st.integers(0, 4), st.sampled_from(["min", "max"]))
def test_the_best_and_the_last_always_stay(losses, best, last, mode):
    entries = [
        CheckpointMetadata(f"{i}.pt", i, i, i, {"val_loss": loss}, "val_loss", "")
        for i, loss in enumerate(losses)
    ]
    stay = kept(entries, best=best, last=last, mode=mode)
    assert ranked(entries, mode)[0] in stay and entries[-1] in stay
    assert len(stay) <= max(1, best) + max(1, last)
    for entry in [*ranked(entries, mode)[:best], *entries[len(entries) - last :]]:
        assert entry in stay
    # saving one after the other, deleting each time, the best of all is never lost
    alive: list[CheckpointMetadata] = []
    for entry in entries:
        alive = kept([*alive, entry], best=best, last=last, mode=mode)
    assert ranked(alive, mode)[0] == ranked(entries, mode)[0]


# -- what is saved comes back


def test_a_checkpoint_comes_back_with_everything_in_it(tmp_path, parts):
    model, optimizer, scheduler = parts
    optimizer.param_groups[0]["lr"] = 0.005
    manager = CheckpointManager(str(tmp_path))
    custom = {"patience": 2, "config": {"rate": 5e-5, "names": ["a"]}, "mean": torch.ones(2)}
    metrics = {"val_loss": torch.tensor(0.5), "accuracy": np.float32(0.25), "steps": 3}
    path = manager.save(*parts, 5, metrics, global_step=500, custom_state=custom)
    assert path.name.startswith("checkpoint_epoch0005_step000500_") and path.suffix == ".pt"
    state = manager.load(path)
    assert (state["epoch"], state["global_step"], state["monitor"]) == (5, 500, "val_loss")
    assert state["metrics"] == {"val_loss": 0.5, "accuracy": 0.25, "steps": 3.0}
    assert state["monitor_value"] == 0.5
    assert state["custom_state"]["config"] == custom["config"]
    assert set(state["rng_state"]) >= {"python", "numpy", "torch"}
    assert {"timestamp", "git_commit", "scheduler_state_dict"} <= set(state)
    fresh = torch.optim.Adam(model.parameters())
    fresh.load_state_dict(state["optimizer_state_dict"])
    assert fresh.param_groups[0]["lr"] == 0.005
    model.load_state_dict(state["model_state_dict"])
    scheduler.load_state_dict(state["scheduler_state_dict"])
    assert manager.save(model, None, None, 6, metrics).exists()
    assert manager.load(manager.get_latest())["global_step"] == 6  # the epoch, by default


def test_the_global_generators_go_on_where_they_were(tmp_path, parts):
    manager = CheckpointManager(tmp_path)
    path = manager.save(*parts, 1, {"val_loss": 1})

    def drawn():
        return random.random(), np.random.rand(3).tolist(), torch.rand(3).tolist()

    expected = drawn()
    assert drawn() != expected
    manager.load(path, restore_rng=False)
    assert drawn() != expected
    manager.load(path)
    assert drawn() == expected


def test_loaders_and_modules_go_on_where_they_were(tmp_path, parts):
    """Defect: a seed and a step were saved, and nobody could go there."""
    loader = ChunkedDataLoader(torch.arange(20), 4, shuffle=True)
    module = UniversalDataModule(torch.arange(30), batch_size=4, num_workers=0)
    next(iter(loader)), next(iter(module.train_dataloader()))
    manager = CheckpointManager(tmp_path)
    both = {"plain": loader, "module": module}
    path = manager.save(*parts, 0, {"val_loss": 1}, loaders=both)
    alone = manager.save(*parts, 0, {"val_loss": 1}, loaders=module)
    expected = [[b.tolist() for b in each] for each in (loader, module.train_dataloader())]
    # left in their midst, the rest of the epoch would have been given up
    again = ChunkedDataLoader(torch.arange(20), 4, shuffle=True)
    other = UniversalDataModule(torch.arange(30), batch_size=4, num_workers=0)
    manager.load(path, loaders={"plain": again, "module": other})
    rest = [[b.tolist() for b in each] for each in (again, other.train_dataloader())]
    first = ChunkedDataLoader(torch.arange(20), 4, shuffle=True)
    assert [b.tolist() for b in first][1:] == rest[0] != expected[0]
    manager.load(alone, other)
    assert [b.tolist() for b in other.train_dataloader()] == rest[1]


# -- which ones there are


def test_the_best_and_the_last_are_found(tmp_path, parts):
    manager = CheckpointManager(tmp_path)
    paths = save_all(manager, parts, [0.8, 0.5, 0.3, 0.4, 0.6])
    assert manager.get_best() == paths[2] and manager.get_latest() == paths[4]
    assert manager.load()["epoch"] == 3
    assert CheckpointManager(tmp_path, mode="max").get_best() == paths[0]


def test_four_of_five_stay_with_two_best_and_two_last(tmp_path, parts):
    manager = CheckpointManager(tmp_path, keep_best_k=2, keep_last_n=2)
    save_all(manager, parts, [0.1, 0.2, 0.3, 0.4, 0.5])
    assert [each.epoch for each in manager.list_checkpoints()] == [5, 4, 2, 1]
    assert len([*tmp_path.glob("*.pt")]) == 4


def test_checkpoints_are_listed_latest_epoch_first(tmp_path, parts):
    manager = CheckpointManager(tmp_path)
    for epoch in (3, 1, 5, 2, 4):
        manager.save(*parts, epoch, {"val_loss": 0.5})
    assert [each.epoch for each in manager.list_checkpoints()] == [5, 4, 3, 2, 1]
    assert manager.list_checkpoints()[0].monitor_value == 0.5


def test_saving_an_epoch_twice_never_deletes_the_better_one(tmp_path, parts):
    """Defect: files were found by epoch and step, and cleaning one deleted both."""
    manager = CheckpointManager(tmp_path, keep_best_k=1, keep_last_n=1)
    first = manager.save(*parts, 1, {"val_loss": 0.5}, global_step=10)
    for loss in (0.9, 0.8, 0.7):
        manager.save(*parts, 1, {"val_loss": loss}, global_step=10)
    assert manager.get_best() == first and manager.load()["metrics"]["val_loss"] == 0.5
    assert len([*tmp_path.glob("*.pt")]) == 2


def test_a_loss_that_is_not_a_number_is_never_the_best(tmp_path, parts):
    manager = CheckpointManager(tmp_path, keep_best_k=1, keep_last_n=1)
    save_all(manager, parts, [float("nan"), 0.5, float("nan")])
    assert manager.load()["epoch"] == 2


def test_every_few_epochs_one_should_be_saved(tmp_path):
    manager = CheckpointManager(tmp_path, save_interval_epochs=3)
    assert [epoch for epoch in range(7) if manager.should_save(epoch)] == [0, 3, 6]


@pytest.mark.parametrize("damage", ["missing", "nonsense", "stale"])
def test_the_registry_is_made_anew_from_the_checkpoints(tmp_path, parts, damage):
    manager = CheckpointManager(tmp_path)
    paths = save_all(manager, parts, [0.3, 0.2])
    before, file = manager.list_checkpoints(), tmp_path / REGISTRY
    if damage == "missing":
        file.unlink()
    elif damage == "nonsense":
        file.write_bytes(file.read_bytes()[:40])
    else:  # killed before it was written; and one it names was deleted by hand
        entries = json.loads(file.read_text())
        file.write_text(json.dumps([{**entries[0], "file": "checkpoint_gone.pt"}]))
    fresh = CheckpointManager(tmp_path)
    assert fresh.list_checkpoints() == before and fresh.get_best() == paths[1]
    fresh.save(*parts, 3, {"val_loss": 0.1})
    assert [each["epoch"] for each in json.loads(file.read_text())] == [1, 2, 3]


def test_a_copy_is_kept_elsewhere_if_asked_for(tmp_path, parts):
    backup = tmp_path / "elsewhere" / "deep"
    manager = CheckpointManager(tmp_path, drive_backup=True, drive_backup_path=backup)
    path = manager.save(*parts, 1, {"val_loss": 1})
    assert (backup / path.name).read_bytes() == path.read_bytes()


def test_a_backup_that_cannot_be_made_is_said_and_training_goes_on(tmp_path, parts, caplog):
    (tmp_path / "file").write_text("in the way")
    manager = CheckpointManager(
        tmp_path, drive_backup=True, drive_backup_path=tmp_path / "file" / "x"
    )
    assert manager.save(*parts, 1, {"val_loss": 1}).exists()
    assert "no backup of checkpoint_epoch0001" in caplog.text


# -- damage


@pytest.mark.parametrize("damage", ["text", "cut", "one bit", "empty"])
def test_a_damaged_checkpoint_is_reported_with_how_to_recover(tmp_path, parts, damage):
    manager = CheckpointManager(tmp_path)
    good, bad = save_all(manager, parts, [0.3, 0.2])
    content = bytearray(bad.read_bytes())
    if damage == "one bit":  # of a weight; torch itself would not notice
        weights = bytes(parts[0][0].weight.detach().numpy().tobytes())
        content[content.index(weights) + 7] ^= 1
        bad.write_bytes(content)
        torch.load(bad, weights_only=True)
    else:
        bad.write_bytes({"text": b"corrupted data", "cut": content[:-100], "empty": b""}[damage])
    with pytest.raises(RuntimeError, match=r"is corrupted.*recovery: load\(.*epoch 1") as error:
        manager.load()
    assert good.name in str(error.value) and isinstance(error.value, CheckpointError)
    assert manager.load(good)["epoch"] == 1
    good.unlink()
    with pytest.raises(CheckpointError, match="no other checkpoint is intact"):
        manager.load(bad)


class Harmful:
    """What would run if checkpoints were unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_nothing_in_a_checkpoint_can_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"epoch": 1, "custom_state": Harmful()}, tmp_path / "checkpoint_evil.pt")
    manager = CheckpointManager(tmp_path)
    with pytest.raises(RuntimeError, match=r"unsupported GLOBAL posix.mkdir"):
        manager.load(tmp_path / "checkpoint_evil.pt")
    assert manager.get_best() is None and not Path("ran").exists()


@pytest.mark.parametrize(
    "state", [{"path": Path("x")}, {"f": print}, {"n": np.float64(1)}, {"a": {"b": [Harmful()]}}]
)
def test_what_could_not_be_loaded_is_refused_before_anything_is_written(tmp_path, parts, state):
    manager = CheckpointManager(tmp_path)
    with pytest.raises(ConfigError, match=r"custom_state cannot be in a checkpoint.*tensors"):
        manager.save(*parts, 1, {"val_loss": 1}, custom_state=state)
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_is_an_error_that_keeps_what_was_there(tmp_path, parts):
    """Stood for by a limit on the size of files, which writing runs into half way."""
    manager = CheckpointManager(tmp_path, keep_best_k=1, keep_last_n=1)
    path = manager.save(*parts, 1, {"val_loss": 1})
    names = sorted(each.name for each in tmp_path.iterdir())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size // 2, before[1]))
    try:
        with pytest.raises(
            CheckpointError, match=r"could not write.*earlier checkpoints are kept.*disk full"
        ):
            manager.save(*parts, 2, {"val_loss": 0.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    assert manager.load()["epoch"] == 1
    assert manager.save(*parts, 3, {"val_loss": 0.5}).exists()


def kill(commands, tmp_path: Path, kills: int, seed: int) -> dict:
    done = commands.program(tmp_path, PROGRAM, tmp_path / "run", kills, seed)
    assert done.code == 0, done.err[-2000:]
    return json.loads(done.out)


def test_killed_while_saving_the_last_checkpoint_or_the_one_before_is_there(commands, tmp_path):
    found = kill(commands, tmp_path, kills=20, seed=1)
    assert found["kills"] == 20
    assert found["unfinished"] and found["whole"]  # it did hit the midst of saves


@pytest.mark.proof
def test_killed_hundreds_of_times_while_saving(commands, tmp_path):
    assert kill(commands, tmp_path, kills=300, seed=2)["unfinished"] >= 20


# -- refusals


def test_nothing_to_load_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="No checkpoints found"):
        CheckpointManager(tmp_path).load()
    with pytest.raises(NoCheckpointError, match="there is no checkpoint"):
        CheckpointManager(tmp_path).load(tmp_path / "checkpoint_x.pt")


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"train_loss": 0.5}, "monitor 'val_loss' not found in metrics"),
        ({"val_loss": torch.ones(2)}, "must be single numbers"),
        ({"val_loss": "low"}, "must be single numbers"),
    ],
)
def test_metrics_that_cannot_be_watched_are_refused_before_anything_is_written(
    tmp_path, parts, metrics, said
):
    """Defect: a tensor was refused after the file was written and before it was registered."""
    with pytest.raises(ValueError, match=said):
        CheckpointManager(tmp_path).save(*parts, 1, metrics)
    assert [*tmp_path.iterdir()] == []


def test_a_loader_that_was_not_saved_cannot_be_put_back(tmp_path, parts):
    manager = CheckpointManager(tmp_path)
    path = manager.save(*parts, 1, {"val_loss": 1})
    with pytest.raises(CheckpointError, match="no state of the loader"):
        manager.load(path, loaders=ChunkedDataLoader(torch.arange(4), 2))


@pytest.mark.parametrize(
    "options", [{"mode": "least"}, {"save_interval_epochs": 0}, {"drive_backup": True}]
)
def test_impossible_settings_are_refused(tmp_path, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        CheckpointManager(tmp_path, **options)


# -- configuration


def test_a_training_configuration_has_defaults_and_comes_back_from_json(tmp_path):
    config = TrainingConfig()
    assert (config.random_seed, config.batch_size, config.epochs) == (42, 4, 10)
    assert config.learning_rate == 5e-5
    config.validate()
    changed = TrainingConfig(batch_size=32, early_stopping_patience=3)
    changed.save(tmp_path / "config.json")
    assert TrainingConfig.load(tmp_path / "config.json") == changed
    assert TrainingConfig.from_dict(changed.to_dict()) == changed
    with pytest.raises(AttributeError):
        config.batch_size = 8


def test_all_faults_of_a_configuration_are_listed_at_once():
    faulty = TrainingConfig(batch_size=0, epochs=-1, learning_rate=0, validation_split=1.0)
    with pytest.raises(ConfigError) as error:
        faulty.validate()
    for name in ("batch_size", "epochs", "learning_rate", "validation_split"):
        assert name in str(error.value)


def test_a_misspelled_setting_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        TrainingConfig.from_dict({"learningrate": 1e-3})


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"checkpoint_dir .* cannot be created"):
        CheckpointManager(tmp_path / "file" / "checkpoints")
