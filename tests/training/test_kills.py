"""Killed between any two file operations of a save: the directory can always be resumed."""

import os
import random
import signal
import time

import pytest
import torch

from penstock.training import CheckpointManager
from penstock.training.checkpoint_files import read_checkpoint, write_checkpoint
from penstock.training.run.directory import KEPT, RunPaths, last_readable
from tests.training.killing import kill_at
from tests.training.run.forking import forked

SAVES = 3
FEWEST_WINDOWS = 12  # open, rename, link, rename, and remove of old ones: a check that bites


def weights(step):
    return torch.full((2000,), float(step))


class Run:
    """A run of `penstock train`: steps, the best, old ones removed."""

    def __init__(self, folder):
        self.paths = RunPaths(folder / "run")
        self.paths.make()

    def save(self, step):
        path = self.paths.checkpoint(step)
        write_checkpoint(path, {"step": step, "weights": weights(step)})
        if step % 2:
            self.paths.keep_as_best(path)
        self.paths.remove_old()

    def resumed(self):
        self.paths.clean()
        assert not [name for name in os.listdir(self.paths.checkpoints) if name.startswith(".")]
        assert not self.paths.damaged()
        assert len(self.paths.saved()) <= KEPT + 1
        if self.paths.best.exists():
            assert read_checkpoint(self.paths.best)["step"] % 2
        found = last_readable(self.paths, first_rank=True)
        return None if found is None else (found.content["step"], found.content["weights"])


class Manager:
    """A directory of `CheckpointManager`."""

    def __init__(self, folder):
        self.manager = CheckpointManager(folder / "saved", keep_best_k=1, keep_last_n=1)
        self.model = torch.nn.Linear(2000, 1, bias=False)

    def save(self, step):
        with torch.no_grad():
            self.model.weight.fill_(step)
        loss = {"val_loss": (-1.0) ** step}
        self.manager.save(self.model, None, None, step, loss, global_step=step)

    def resumed(self):
        latest = self.manager.get_latest()
        if latest is None:
            return None
        state = self.manager.load(latest, restore_rng=False)
        return state["global_step"], state["model_state_dict"]["weight"][0]


def saving(kind, folder, first, at=None):
    """A child's work: save ``first`` and the following steps, each said when it is saved."""

    def work(say):
        if at is not None:
            kill_at(at, folder)
        program = kind(folder)
        for step in range(first, first + SAVES):
            program.save(step)
            say(step)

    return work


def check_resumed(kind, folder, said):
    """What is there is whole, and nothing that was said to be saved is lost."""
    found = kind(folder).resumed()
    if found is None:
        assert said == 0
        return 0
    step, values = found
    assert step >= said and torch.equal(values, weights(step))
    return step


@pytest.mark.parametrize("kind", [Run, Manager])
def test_a_kill_between_any_two_file_operations_leaves_a_directory_to_resume(kind, tmp_path):
    for at in range(1000):
        folder = tmp_path / str(at)
        folder.mkdir()
        with forked(saving(kind, folder, 1, at)) as (_, said, codes):
            steps = [int(line) for line in said]
        step = check_resumed(kind, folder, max(steps, default=0))
        if codes == [0]:
            break
        assert codes == [-signal.SIGKILL]
        if at % 5 == 0:  # and it continues from there
            with forked(saving(kind, folder, step + 1)) as (_, said, codes):
                assert len(list(said)) == SAVES
            assert check_resumed(kind, folder, step + SAVES) == step + SAVES
    assert FEWEST_WINDOWS <= at < 1000


@pytest.mark.parametrize(
    "kills", [4, pytest.param(150, marks=pytest.mark.proof)], ids=["quick", "proof"]
)
@pytest.mark.parametrize("kind", [Run, Manager])
def test_kills_at_random_times_leave_a_directory_to_resume(kind, tmp_path, kills):
    rng, step = random.Random(kills), 0
    for _ in range(kills):
        with forked(saving(kind, tmp_path, step + 1)) as (pid, said, _):
            first = said.readline()  # saving has begun
            time.sleep(rng.uniform(0, 0.02))
            os.kill(pid, signal.SIGKILL)
            steps = [int(line) for line in (first, *said) if line]
        step = check_resumed(kind, tmp_path, max(steps, default=step))
    assert step > 0
