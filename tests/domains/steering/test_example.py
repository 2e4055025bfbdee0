"""The example trains; stopped in the middle of an epoch and resumed, it ends exactly the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.ranks import Ranks

EXAMPLE = Path(__file__).parents[3] / "examples" / "steering.py"


@pytest.mark.timing
def test_a_stopped_run_ends_exactly_the_same_and_two_ranks_come_to_the_same_scores(tmp_path):
    with Ranks(EXAMPLE) as ranks:

        def run(*arguments, world=1):
            return ranks(world, *arguments).splitlines()

        straight = run("--dir", tmp_path / "straight")
        assert "is valid: 1,500 pairs" in straight[0]
        accuracies = [float(line.split()[-1]) for line in straight if "accuracy" in line]
        assert len(accuracies) == 4 and min(accuracies) > 0.3

        stopped = run("--dir", tmp_path / "stopped", "--stop-at", 50)
        assert "stopped after step 50" in stopped[-1]
        resumed = run("--dir", tmp_path / "stopped")
        assert "resumed at step 50, epoch 2" in resumed[1]
        later = ("epoch  3", "epoch  7", "val")
        assert [line for line in straight if line.startswith(later)] == [
            line for line in resumed if line.startswith(later)
        ]

        two = run("--dir", tmp_path / "ranks", world=2)
        scored = [float(line.split()[-1]) for line in two if "accuracy" in line]
        assert scored == pytest.approx(accuracies, abs=0.02)
