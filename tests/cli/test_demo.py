"""The demo really trains, kills, resumes and compares."""

import subprocess
import sys

import numpy as np

from penstock.cli import demo
from penstock.cli.demo import _report
from penstock.cli.demo_training import BATCH, CHUNK, CHUNKS


def penstock(*arguments):
    command = [sys.executable, "-m", "penstock", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def test_the_demo_is_killed_and_resumes_without_a_trace(tmp_path):
    done = penstock("demo", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exit code -9" in done.stdout and "resumed at step 260" in done.stdout
    assert done.stdout.count("yes") == 3 and "NO" not in done.stdout
    seen = np.fromfile(tmp_path / "killed" / "seen.bin", np.int64)
    assert seen.size == BATCH * CHUNK * CHUNKS

    seen[[0, -1]] = seen[[-1, 0]]  # the comparison can fail
    seen.tofile(tmp_path / "killed" / "seen.bin")
    assert _report(demo.Console(quiet=True), tmp_path) == 1


def test_the_command_line_says_its_version_and_refuses_what_it_does_not_know():
    assert penstock("--version").stdout.startswith("penstock 0.")
    assert penstock("no-such-command").returncode == 2
