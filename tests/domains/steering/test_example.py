"""The example trains; stopped in the middle of an epoch and resumed, it ends exactly the same."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "steering.py"


def lines_of(done):
    assert done.code == 0, done.err[-3000:]
    return done.out.splitlines()


def test_a_stopped_run_ends_exactly_the_same_and_two_ranks_reach_the_same_scores(
    commands, tmp_path
):
    def run(name, *options):
        return lines_of(commands.program(tmp_path, EXAMPLE, "--dir", tmp_path / name, *options))

    straight = run("straight")
    assert "is valid: 1,500 pairs" in straight[0]
    accuracies = [float(line.split()[-1]) for line in straight if "accuracy" in line]
    assert len(accuracies) == 4 and min(accuracies) > 0.3

    assert "stopped after step 50" in run("stopped", "--stop-at", 50)[-1]
    resumed = run("stopped")
    assert "resumed at step 50, epoch 2" in resumed[1]
    later = ("epoch  3", "epoch  7", "val")
    assert [line for line in straight if line.startswith(later)] == [
        line for line in resumed if line.startswith(later)
    ]

    two = lines_of(commands.ranks(2, tmp_path, EXAMPLE, "--dir", tmp_path / "ranks"))
    scored = [float(line.split()[-1]) for line in two if "accuracy" in line]
    assert scored == pytest.approx(accuracies, abs=0.02)
