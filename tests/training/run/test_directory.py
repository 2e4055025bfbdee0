"""Checkpoints of a run: which are kept, and which is the last good one."""

import logging
import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.atomic_files import replacing
from penstock.errors import ConfigError
from penstock.training.checkpoint_files import CheckpointError, write_checkpoint
from penstock.training.run.directory import KEPT, RunPaths, check_no_run, last_readable, step_of
from tests.training.run.forking import forked


@pytest.fixture
def paths(tmp_path):
    paths = RunPaths(tmp_path / "run")
    paths.make()
    return paths


def save(paths, step):
    write_checkpoint(paths.checkpoint(step), {"step": step, "weights": torch.arange(1000)})


def test_the_last_checkpoint_is_the_one_of_the_latest_step(paths):
    assert last_readable(paths, first_rank=True) is None
    for step in (0, 9, 10, 123_456_789):
        save(paths, step)
    found = last_readable(paths, first_rank=True)
    assert found.content["step"] == 123_456_789 == step_of(found.path)


@pytest.mark.parametrize("cut", ["empty", "half", "one byte", "one bit", "gone"])
def test_one_that_cannot_be_read_is_reported_and_the_one_before_is_taken(paths, cut, caplog):
    for step in (10, 20):
        save(paths, step)
    file = paths.checkpoint(20)
    data = bytearray(file.read_bytes())
    if cut == "gone":
        file.unlink()
    elif cut == "one bit":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes(data[: {"empty": 0, "half": len(data) // 2, "one byte": -1}[cut]])
    with caplog.at_level(logging.WARNING, "penstock"):
        others = last_readable(paths, first_rank=False)
        found = last_readable(paths, first_rank=True)
    assert found.content["step"] == others.content["step"] == 10
    assert ("step-00000020.ckpt" in caplog.text) == (cut != "gone")
    assert last_readable(paths, first_rank=True).content["step"] == 10
    assert paths.saved() == [paths.checkpoint(10)]


def test_a_run_whose_checkpoints_are_all_broken_is_not_begun_anew(paths):
    for step in (10, 20):
        paths.checkpoint(step).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"none of the checkpoints in .* is intact"):
        last_readable(paths, first_rank=True)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=8, unique=True), st.data())
def test_the_last_ones_and_the_best_are_kept(tmp_path_factory, steps, data):
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    paths.checkpoints.mkdir()
    best = data.draw(st.sampled_from(steps))
    for step in steps:
        paths.checkpoint(step).write_text(str(step))
        if step == best:
            paths.keep_as_best(paths.checkpoint(step))
    paths.remove_old()
    assert [step_of(path) for path in paths.saved()] == sorted(steps, reverse=True)[:KEPT]
    assert paths.best.read_text() == str(best)


def test_without_hard_links_the_best_is_a_copy(paths, monkeypatch):
    monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    save(paths, 10)
    paths.keep_as_best(paths.checkpoint(10))
    assert paths.best.read_bytes() == paths.checkpoint(10).read_bytes()


def test_cleaning_removes_what_a_killed_process_left_unfinished(paths):
    def work(say):
        with replacing(paths.checkpoint(30)) as new:
            new.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

    with forked(work):
        pass
    (left,) = paths.checkpoints.iterdir()
    mine = paths.checkpoints / ".mine.tmp"  # not one of ours
    mine.write_text("mine")
    paths.clean()
    paths.write_config({"a": 1})
    assert not left.exists() and mine.exists() and paths.config.read_text() == "a: 1\n"


@pytest.mark.parametrize("place", ["file", "file/inside", "/proc/x"])
def test_a_place_that_cannot_be_a_directory_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"cannot be created or written to .*choose another"):
        RunPaths(tmp_path / place).make()


def test_a_directory_that_holds_a_run_is_refused(paths):
    check_no_run(paths)
    save(paths, 0)
    with pytest.raises(ConfigError, match="already holds a run: continue it with --resume"):
        check_no_run(paths)
