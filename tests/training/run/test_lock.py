"""A run directory belongs to one process at a time, and to nobody once that is gone."""

import os
import signal

import pytest

from penstock.errors import ConfigError
from penstock.training.run.directory import LOCK, RunInUseError, locked
from tests.training.run.forking import forked


def test_a_directory_in_use_is_refused_and_one_of_a_dead_process_is_free(tmp_path):
    def hold(say):
        with locked(tmp_path):
            say("held")
            signal.pause()

    with forked(hold) as (pid, said, codes):
        assert said.readline() == "held\n"
        with pytest.raises(RunInUseError, match=f"in use by process {pid} on .*: wait for it"):
            with locked(tmp_path):
                raise AssertionError("two hold it")
        os.kill(pid, signal.SIGKILL)
    assert codes == [-signal.SIGKILL] and (tmp_path / LOCK).exists()
    with locked(tmp_path):
        pass


def test_a_lock_is_free_after_its_block_and_after_an_error_in_it(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), locked(tmp_path):
            raise KeyError
    with locked(tmp_path), pytest.raises(ConfigError, match="in use"), locked(tmp_path):
        pass
