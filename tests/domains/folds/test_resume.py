"""A run by folds that was interrupted anywhere continues exactly, at its fold and epoch."""

import multiprocessing
import os
import shutil
import signal
from functools import cache

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
STEPS = 3  # of an epoch: 48 samples in batches of 16


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
def uninterrupted(stock):
    return train(optimize_dataloaders=not stock)


def control(stock=False):
    """A run without interruption."""
    return uninterrupted(stock)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")
    train(directory=directory)
    return directory


@pytest.fixture
def finished(finished_run, tmp_path):
    """The directory of a finished run, for one test to use."""
    return shutil.copytree(finished_run, tmp_path / "run")


INTERRUPTIONS = [  # torch's own loaders or not, and the step of the interruption
    *((True, step) for step in (1, 2, 3, 4, 8, 12, 13, 20, 24)),
    *((False, step) for step in (1, 4, 8, 13, 24)),
    *(pytest.param(False, step, marks=pytest.mark.proof) for step in (2, 3, 12, 20)),
]


@pytest.mark.parametrize(("stock", "step"), INTERRUPTIONS)
def test_an_interrupted_run_continues_exactly(stock, step, tmp_path, interrupted_at):
    given = {"optimize_dataloaders": not stock}
    expected = control(stock)
    interrupted_at(step)
    with pytest.raises(KeyboardInterrupt):
        train(directory=tmp_path, **given)
    interrupted_at(10**9)
    assert same_result(train(directory=tmp_path, **given), expected)
    whole_epochs = (step - 1) // STEPS * STEPS
    assert Interrupted.steps == 24 - whole_epochs  # nothing finished was trained again


def test_a_finished_run_is_read_and_not_trained(finished, interrupted_at):
    interrupted_at(1)
    assert same_result(train(directory=finished), control())
    assert Interrupted.steps == 0


def test_a_single_split_continues_too(tmp_path, interrupted_at):
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


class Killed(Interrupted):
    """A model that kills its process at step `killed_at`."""

    count, killed_at = 0, 10**9

    def forward(self, x):
        Killed.count += self.training
        if Killed.count == Killed.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


Killed.__qualname__ = "Interrupted"  # the run is continued with that model


def train_until_killed(directory, step):
    Killed.killed_at = step
    train(Killed, directory)


@pytest.mark.parametrize("step", [8, pytest.param(17, marks=pytest.mark.proof)])
def test_a_killed_run_continues_exactly(step, tmp_path):
    fork = multiprocessing.get_context("fork")  # a new interpreter would import torch again
    process = fork.Process(target=train_until_killed, args=(tmp_path, step))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "fold_1.pt").exists()
    assert same_result(train(directory=tmp_path), control())


def test_an_unfinished_file_is_ignored(tmp_path, interrupted_at):
    interrupted_at(8)
    with pytest.raises(KeyboardInterrupt):
        train(directory=tmp_path)
    (tmp_path / "fold_1.pt.new").write_bytes(b"half a checkpo")  # the process died while writing
    interrupted_at(10**9)
    assert same_result(train(directory=tmp_path), control())


def test_checkpoints_contain_no_code(finished_run):
    for fold in (1, 2):
        found = torch.load(finished_run / f"fold_{fold}.pt", weights_only=True)
        expected = control()[0]["fold_results"][f"fold_{fold}"]
        assert found["result"]["final_val_acc"] == expected["final_val_acc"]


def test_measuring_the_loaders_does_not_change_the_run(tmp_path, interrupted_at):
    interrupted_at(8)
    with pytest.raises(KeyboardInterrupt):
        train(directory=tmp_path)
    interrupted_at(10**9)
    for _ in range(2):  # trained to the end, then read
        found = train(directory=tmp_path, benchmark_performance=True)
        assert same_result(found[1], control()[1])
        assert found[0]["fold_results"]["fold_2"]["performance"]["train"]["num_batches"] >= 3


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
def test_the_directory_of_another_run_is_refused(given, message, finished):
    with pytest.raises(StateError, match=message):
        train(directory=finished, **given)


def test_other_data_is_refused(finished, monkeypatch):
    monkeypatch.setitem(globals(), "FEATURES", FEATURES + 1)
    with pytest.raises(StateError, match="holds a run with data"):
        train(directory=finished)


def test_other_labels_are_refused(finished, monkeypatch):
    monkeypatch.setitem(globals(), "LABELS", (LABELS + 1) % 3)
    with pytest.raises(StateError, match=r"holds a run with (data|labels)"):
        train(directory=finished)


def test_a_checkpoint_that_names_no_run_is_refused(finished):
    state = torch.load(finished / "fold_1.pt", weights_only=True)
    del state["run"]
    torch.save(state, finished / "fold_1.pt")
    with pytest.raises(StateError, match=r"fold_1\.pt' holds a run with"):
        train(directory=finished)
    (finished / "fold_1.pt").unlink()  # what the message advises
    assert same_result(train(directory=finished), control())


def test_a_checkpoint_of_other_weights_is_refused(finished):
    state = torch.load(finished / "fold_1.pt", weights_only=True)
    torch.save({"run": state["run"], "epoch": 1}, finished / "fold_1.pt")
    with pytest.raises(StateError, match=r"does not fit this run .* delete it to train fold 1"):
        train(directory=finished)
