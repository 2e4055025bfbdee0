"""A run by folds that ends anywhere goes on at its fold and epoch, as if it had never ended."""

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from penstock.domains.folds import cross_val_training, single_fold_training
from penstock.errors import StateError
from tests.domains.folds.birds import CLASSES, Interrupted, Listener, birds, same_result

FEATURES, LABELS, AUTHORS, _ = birds()
CONFIG = {
    "num_epochs": 4, "batch_size": 16, "learning_rate": 0.01, "k_folds": 2,
    "max_split_attempts": 5, "spec_augment": True, "gaussian_noise": True,
}  # fmt: skip


def train(model=Interrupted, directory=None, **given):
    return cross_val_training(
        features=FEATURES,
        labels=LABELS,
        authors=AUTHORS,
        model_class=model,
        num_classes=CLASSES,
        config={**CONFIG, **given},
        run_directory=directory,
    )


@pytest.fixture
def interrupted_at():
    def set_end(step):
        Interrupted.steps, Interrupted.ends_at = 0, step

    yield set_end
    set_end(10**9)


@cache
def control():
    """The run that nothing interrupts."""
    return train()


STEPS = 3  # of an epoch: 48 samples in batches of 16


@pytest.mark.parametrize("step", [1, 2, 3, 4, 8, 12, 13, 20, 24])
@pytest.mark.parametrize("stock", [False, True])
def test_a_run_that_was_interrupted_goes_on_exactly(step, stock, tmp_path, interrupted_at):
    given = {"optimize_dataloaders": not stock}
    expected = train(**given) if stock else control()
    interrupted_at(step)
    with pytest.raises(KeyboardInterrupt):
        train(directory=tmp_path, **given)
    interrupted_at(10**9)
    assert same_result(train(directory=tmp_path, **given), expected)
    whole_epochs = (step - 1) // STEPS * STEPS
    assert Interrupted.steps == 24 - whole_epochs  # nothing finished was trained again


def test_a_finished_run_is_read_not_trained(tmp_path, interrupted_at):
    train(directory=tmp_path)
    interrupted_at(1)
    assert same_result(train(directory=tmp_path), control())
    assert Interrupted.steps == 0


def test_a_single_split_goes_on_too(tmp_path, interrupted_at):
    def run(directory):
        return single_fold_training(
            features=FEATURES,
            labels=LABELS,
            authors=AUTHORS,
            model_class=Interrupted,
            config={"num_epochs": 4, "batch_size": 16, "max_split_attempts": 5},
            run_directory=directory,
        )

    expected = run(None)
    interrupted_at(7)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    interrupted_at(10**9)
    assert same_result(run(tmp_path), expected)


PROGRAM = """
import os, signal, sys
from tests.domains.folds.test_resume import train
from tests.domains.folds import birds

class Killed(birds.Interrupted):
    def forward(self, x):
        Killed.count = getattr(Killed, "count", 0) + self.training
        if Killed.count == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)

Killed.__qualname__ = "Interrupted"
train(Killed, sys.argv[1])
"""


@pytest.mark.parametrize("step", [8, pytest.param(17, marks=pytest.mark.proof)])
def test_a_run_that_was_killed_goes_on_exactly(step, tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(step)]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    assert subprocess.run(command, cwd=root, env=environment).returncode == -signal.SIGKILL
    assert (tmp_path / "fold_1.pt").exists()
    assert same_result(train(directory=tmp_path), control())


def test_a_torn_file_is_never_seen(tmp_path, interrupted_at):
    interrupted_at(8)
    with pytest.raises(KeyboardInterrupt):
        train(directory=tmp_path)
    (tmp_path / "fold_1.pt.new").write_bytes(b"half a checkpo")  # it died while it wrote
    interrupted_at(10**9)
    assert same_result(train(directory=tmp_path), control())


def test_checkpoints_hold_no_code(tmp_path):
    train(directory=tmp_path)
    for fold in (1, 2):
        found = torch.load(tmp_path / f"fold_{fold}.pt", weights_only=True)
        assert (
            found["result"]["final_val_acc"]
            == control()[0]["fold_results"][f"fold_{fold}"]["final_val_acc"]
        )


# -- refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rate": 0.02}, "holds a run with learning_rate 0.01, this one has 0.02"),
        ({"num_epochs": 5}, "holds a run with num_epochs 4, this one has 5: use another directory"),
        ({"model": Listener}, "holds a run with model 'Interrupted', this one has 'Listener'"),
        ({"k_folds": 3}, "holds a run with k_folds 2, this one has 3"),
    ],
)
def test_a_directory_of_another_run_is_refused(given, message, tmp_path):
    train(directory=tmp_path, num_epochs=4)
    with pytest.raises(StateError, match=message):
        train(directory=tmp_path, **given)


def test_other_data_is_refused(tmp_path, monkeypatch):
    train(directory=tmp_path)
    monkeypatch.setitem(globals(), "FEATURES", FEATURES + 1)
    with pytest.raises(StateError, match="holds a run with data"):
        train(directory=tmp_path)


def test_other_labels_are_refused(tmp_path, monkeypatch):
    train(directory=tmp_path)
    monkeypatch.setitem(globals(), "LABELS", (LABELS + 1) % 3)
    with pytest.raises(StateError, match=r"holds a run with (data|labels)"):
        train(directory=tmp_path)


def test_measuring_is_no_other_run(tmp_path, interrupted_at):
    interrupted_at(8)
    with pytest.raises(KeyboardInterrupt):
        train(directory=tmp_path)
    interrupted_at(10**9)
    for _ in range(2):  # trained to the end, then read
        found = train(directory=tmp_path, benchmark_performance=True)
        assert same_result(found[1], control()[1])
        assert found[0]["fold_results"]["fold_2"]["performance"]["train"]["num_batches"] >= 3
