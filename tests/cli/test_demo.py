"""The demo really trains, kills, resumes and compares."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from penstock.cli.demo import PASSES, SAMPLES, Console, _promises, run_demo


def penstock(*arguments):
    command = [sys.executable, "-m", "penstock", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def check_demo(folder, out, err):
    assert "exit code -9" in out
    assert "resuming from killed/checkpoints/step-00000270.ckpt" in err
    assert out.count("yes") == 3 and "NO" not in out
    assert "the exact next batch" in out and "the epoch from its start" in out
    *_, verdict, page = [line for line in out.splitlines() if not line.startswith("data and")]
    assert re.match(r"(data|compute)-bound|start-up", verdict), out  # of the run that was resumed
    assert Path(page.removeprefix("  report ")).is_file()
    last = folder / "killed" / "checkpoints" / "step-00000500.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    assert checkpoint["state_dict"]["times_seen"].tolist() == [PASSES] * SAMPLES
    return last, checkpoint


def test_the_demo_is_killed_and_resumes_exactly(commands, tmp_path, capsys):
    errors = []

    def run(folder, *arguments):
        done = commands(folder, *arguments)  # a fork: a new interpreter takes seconds to import
        errors.append(done.err)
        return done.code

    assert run_demo(tmp_path, run) == 0, errors
    last, checkpoint = check_demo(tmp_path, capsys.readouterr().out, errors[-1])

    checkpoint["state_dict"]["digest"] += 1  # the comparison can fail
    torch.save(checkpoint, last)
    assert _promises(Console(quiet=True), tmp_path) == 1


@pytest.mark.proof
def test_the_command_runs_the_demo_in_new_processes(tmp_path):
    done = penstock("demo", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    check_demo(tmp_path, done.stdout, done.stderr)


@pytest.mark.steady
def test_the_command_line_prints_its_version_and_refuses_unknown_commands():
    assert penstock("--version").stdout.startswith("penstock 0.")
    assert penstock("no-such-command").returncode == 2
