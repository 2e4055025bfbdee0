"""The example trains, and stopped in the middle of an epoch it ends exactly as without the stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "steering.py"


def run(*arguments, launcher=()):
    done = subprocess.run(
        [sys.executable, *launcher, EXAMPLE, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # so small that threads only wait for each other
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_stopped_run_goes_on_to_the_very_same_end_and_two_ranks_come_there_too(tmp_path):
    straight = run("--dir", tmp_path / "straight")
    assert "is valid: 1,500 pairs" in straight[0]
    accuracies = [float(line.split()[-1]) for line in straight if "accuracy" in line]
    assert len(accuracies) == 4 and min(accuracies) > 0.3

    assert "stopped after step 50" in run("--dir", tmp_path / "stopped", "--stop-at", 50)[-1]
    resumed = run("--dir", tmp_path / "stopped")
    assert "resumed at step 50, epoch 2" in resumed[1]
    later = [line for line in straight if line.startswith(("epoch  3", "epoch  7", "val"))]
    assert later == [line for line in resumed if line.startswith(("epoch  3", "epoch  7", "val"))]

    two_ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ranks = run("--dir", tmp_path / "ranks", launcher=two_ranks)
    scored = [float(line.split()[-1]) for line in ranks if "accuracy" in line]
    assert scored == pytest.approx(accuracies, abs=0.02)
