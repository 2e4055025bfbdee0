"""The demo really trains, kills, resumes and compares."""

import subprocess
import sys

import torch

from penstock.cli import demo
from penstock.cli.demo import PASSES, SAMPLES, _report


def penstock(*arguments):
    command = [sys.executable, "-m", "penstock", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_demo_is_killed_and_resumes_without_a_trace(tmp_path):
    done = penstock("demo", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exit code -9" in done.stdout
    assert "resuming from killed/checkpoints/step-00000270.ckpt" in done.stderr
    assert done.stdout.count("yes") == 3 and "NO" not in done.stdout

    last = tmp_path / "killed" / "checkpoints" / "step-00000500.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    assert checkpoint["state_dict"]["times_seen"].tolist() == [PASSES] * SAMPLES

    checkpoint["state_dict"]["digest"] += 1  # the comparison can fail
    torch.save(checkpoint, last)
    assert _report(demo.Console(quiet=True), tmp_path) == 1


def test_the_command_line_says_its_version_and_refuses_what_it_does_not_know():
    assert penstock("--version").stdout.startswith("penstock 0.")
    assert penstock("no-such-command").returncode == 2
