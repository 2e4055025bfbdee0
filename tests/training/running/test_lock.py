"""A run directory belongs to one process at a time, and to nobody once that is gone."""

import os
import signal
import subprocess
import sys

import pytest

from penstock.errors import ConfigError
from penstock.training.running.lock import LOCK, InUseError, locked

HOLDER = """
import sys, pathlib
from penstock.training.running.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_directory_in_use_is_refused_and_one_of_a_dead_process_is_free(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InUseError, match=f"in use by process {holder.pid} on .*: wait for it"):
            with locked(tmp_path):
                raise AssertionError("two hold it")
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert (tmp_path / LOCK).exists()
        with locked(tmp_path):
            pass


def test_a_lock_is_free_after_its_block_and_after_an_error_in_it(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), locked(tmp_path):
            raise KeyError
    with locked(tmp_path), pytest.raises(ConfigError, match="in use"), locked(tmp_path):
        pass
