"""Runs that are killed, stopped, or moved, and go on as if nothing had happened."""

import csv

import pytest
import torch

from tests.cli.projects import final_state

SAMPLES, PASSES = 46, 2


def same(one, other, path=""):
    """Raise for the first difference of two checkpoints."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            same(left, right, f"{path}[{number}]")
    else:
        assert one == other, path


def assert_each_sample_once_an_epoch(state):
    seen = [sample for step in state["seen"] for sample in step]
    assert len(seen) == SAMPLES * PASSES
    for epoch in range(PASSES):
        assert sorted(seen[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))


def metrics(run):
    with (run / "csv" / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_an_uninterrupted_run_sees_every_sample_once_an_epoch(uninterrupted):
    _, state, _ = uninterrupted
    assert_each_sample_once_an_epoch(state)


def killed(commands, project, moment, deed="SIGKILL"):
    done = commands(project, "train", "tiny.yaml", AT=f"{moment}:{deed}")
    assert done.code == {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130, "SIGUSR1": 138}[deed]
    return done


MOMENTS = ["train-7", "validate-10-1", "ended-10", "save-5", "writing-12-7"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_ends_as_if_nothing_had_happened(commands, uninterrupted, project, moment):
    whole, state, moments = uninterrupted
    assert moment in moments
    killed(commands, project, moment)
    done = commands(project, "train", "tiny.yaml", "--resume")
    assert done.code == 0, done.err
    same(final_state(project / "run"), state)
    assert metrics(project / "run") == metrics(whole / "run")
    assert not list((project / "run" / "checkpoints").glob(".*"))
