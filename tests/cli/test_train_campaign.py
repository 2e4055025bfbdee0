"""Killed at random moments, and resumed, half of the time elsewhere: nothing is ever lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from penstock.training.run.directory import RunPaths
from tests.cli.projects import PENSTOCK, final_state, new_project
from tests.cli.test_train_resume import (
    ON_TWO_RANKS,
    assert_each_sample_once_an_epoch,
    assert_same,
    assert_whole,
    metrics,
)

KILLS = 20
KINDS = ("train", "validate", "ended", "save", "writing")
ELSEWHERE = (["loader.batch_size=3"], ON_TWO_RANKS, ["loader.batch_size=7"])


def kill_of(number, moments):
    """The moment of a kill and what changes after it, by the number alone."""
    rng = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    moment = rng.choice([each for each in moments if each.startswith(f"{kind}-")])
    return moment, [] if number % 2 else ELSEWHERE[number // 2 % len(ELSEWHERE)]


@pytest.mark.proof
@pytest.mark.parametrize("number", range(KILLS))
def test_a_kill_at_any_moment_loses_nothing(commands, uninterrupted, project, number):
    whole, state, moments = uninterrupted
    moment, changes = kill_of(number, moments)
    assert commands(project, "train", "tiny.yaml", AT=f"{moment}:SIGKILL").code == -signal.SIGKILL
    for path in RunPaths(project / "run").saved():
        torch.load(path, weights_only=True)
    done = commands(project, "train", "tiny.yaml", *changes, "--resume")
    assert done.code == 0, (moment, done.err)
    assert_whole(project / "run")
    ended = final_state(project / "run")
    assert_each_sample_once_an_epoch(ended)
    if not changes:
        assert_same(ended, state)
        assert metrics(project / "run") == metrics(whole / "run")
    elif changes is ON_TWO_RANKS:  # the same steps, of halves
        assert ended["seen"] == state["seen"]
        assert torch.allclose(ended["state_dict"]["weight"], state["state_dict"]["weight"])


@pytest.mark.parametrize(
    "windows",
    [range(11, 60, 12), pytest.param(range(400), marks=pytest.mark.proof)],
    ids=["quick", "proof"],
)
def test_a_kill_between_any_two_file_operations_loses_nothing(
    commands, uninterrupted, tmp_path, windows
):
    """Between write, rename, link and prune of checkpoints, and of logs and configuration."""
    for at in windows:
        project = new_project(tmp_path / str(at))
        killed = commands(project, "train", "tiny.yaml", KILL_AT_FILE=str(at)).code
        if killed == 0:
            break  # the run has fewer operations
        assert killed == -signal.SIGKILL
        done = commands(project, "train", "tiny.yaml", "--resume")
        assert done.code == 0, (at, done.err)
        assert_whole(project / "run")
        assert_same(final_state(project / "run"), uninterrupted[1])
        shutil.rmtree(project)


def torchrun(project, *overrides, at=""):
    command = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node=2"]
    command += ["--standalone", "--no-python", str(PENSTOCK), "train", "tiny.yaml", "--resume"]
    return subprocess.run(
        [*command, "loader.batch_size=2", *overrides],
        cwd=project,
        env={**os.environ, "OMP_NUM_THREADS": "1", "AT": at},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.proof
def test_torchrun_starts_it_and_a_signal_to_one_rank_stops_all(uninterrupted, project):
    stopped = torchrun(project, at="train-9:SIGUSR1")
    assert "stopped by SIGUSR1 after 10 steps" in stopped.stdout, stopped.stderr
    done = torchrun(project)
    assert done.returncode == 0, done.stderr
    assert final_state(project / "run")["seen"] == uninterrupted[1]["seen"]
    assert_whole(project / "run")


@pytest.mark.proof
def test_a_signal_to_torchrun_is_saved_by_all_its_ranks(commands, project):
    stopped = torchrun(project, "train.max_passes=2000", at="train-9:PARENT")
    assert "stopped by SIGTERM" in stopped.stdout, stopped.stderr
    assert_whole(project / "run")
    last = final_state(project / "run")
    assert last["global_step"] == len(last["seen"]) > 9
    passes = last["global_step"] // 12 + 1
    done = commands(project, "train", "tiny.yaml", f"train.max_passes={passes}", "--resume")
    assert done.code == 0, done.err
    seen = [sample for step in final_state(project / "run")["seen"] for sample in step]
    assert all(sorted(seen[at : at + 46]) == [*range(46)] for at in range(0, len(seen), 46))
