"""Which checkpoints are damaged, and which only cannot be read now; files nobody can redirect."""

import os
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.atomic_files import replace_text, replacing
from penstock.errors import ConfigError
from penstock.training import CheckpointManager
from penstock.training.checkpoint_files import (
    CheckpointError,
    DamagedCheckpointError,
    NoCheckpointError,
    UnreadableCheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from penstock.training.run.directory import RunPaths, check_no_run, last_readable, locked


@pytest.fixture
def paths(tmp_path):
    paths = RunPaths(tmp_path / "run")
    paths.make()
    for step in (10, 20):
        write_checkpoint(paths.checkpoint(step), {"step": step, "weights": torch.arange(1000)})
    return paths


# -- what cannot be read now; also root meets these, whom no permission stops


def a_link_to_nothing(path):
    path.symlink_to(path.parent / "not_mounted" / path.name)


def a_link_to_itself(path):
    path.symlink_to(path.name)


def a_directory(path):
    path.mkdir()


def an_io_error(path):
    path.symlink_to("/proc/self/mem")  # its first byte cannot be read: EIO


UNREADABLE = [a_link_to_nothing, a_link_to_itself, a_directory, an_io_error]


@pytest.mark.parametrize("way", UNREADABLE)
def test_a_checkpoint_that_cannot_be_read_now_stops_a_resume_and_stays(paths, way, tmp_path):
    last, kept = paths.checkpoint(20), tmp_path / "kept"
    last.rename(kept)
    way(last)
    names = sorted(os.listdir(paths.checkpoints))
    for first_rank in (True, False, True):  # also the second time
        with pytest.raises(UnreadableCheckpointError, match=r"step-00000020.*cannot be read now"):
            last_readable(paths, first_rank=first_rank)
    assert sorted(os.listdir(paths.checkpoints)) == names
    # what the message advises: move it away for an earlier one, or make it readable
    last.rename(tmp_path / "moved")
    assert last_readable(paths, first_rank=True).content["step"] == 10
    kept.rename(last)
    assert last_readable(paths, first_rank=True).content["step"] == 20


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_without_permission_a_checkpoint_stays_and_nothing_starts_from_0(paths, tmp_path):
    temporary = Path(tempfile.gettempdir())
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and temporary in folder.parents:
            folder.chmod(0o755)
    paths.checkpoint(20).chmod(0)
    try:
        os.seteuid(65534)
        with pytest.raises(UnreadableCheckpointError, match="Permission denied"):
            last_readable(paths, first_rank=False)
        os.seteuid(0)
        paths.checkpoints.chmod(0)  # a glob would find nothing in it
        os.seteuid(65534)
        with pytest.raises(CheckpointError, match="cannot be listed"):
            last_readable(paths, first_rank=False)
        with pytest.raises(CheckpointError, match="cannot be listed"):
            check_no_run(paths)
    finally:
        os.seteuid(0)
        paths.checkpoints.chmod(0o755)
    assert last_readable(paths, first_rank=True).content["step"] == 20


SHORT_OF_MEMORY = """
import resource, sys
from pathlib import Path
from penstock.training.checkpoint_files import UnreadableCheckpointError, read_checkpoint
small, large = map(Path, sys.argv[1:])
read_checkpoint(small)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.RLIM_INFINITY))
try:
    read_checkpoint(large)
except UnreadableCheckpointError as error:
    print(error)
"""


def test_too_little_memory_is_no_damage(tmp_path):
    small, large = tmp_path / "small.ckpt", tmp_path / "large.ckpt"
    write_checkpoint(small, {"x": torch.zeros(1)})
    write_checkpoint(large, {"x": torch.zeros(32 << 20, dtype=torch.uint8).repeat(4)})
    command = [sys.executable, "-c", SHORT_OF_MEMORY, str(small), str(large)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert "cannot be read now" in said and "is not changed" in said


@pytest.mark.parametrize("way", UNREADABLE)
def test_a_manager_does_not_take_an_earlier_one_for_the_latest(tmp_path, way):
    manager = CheckpointManager(tmp_path / "saved")
    model = torch.nn.Linear(1, 1)
    paths = [manager.save(model, None, None, epoch, {"val_loss": 1.0}) for epoch in (1, 2)]
    paths[1].rename(kept := tmp_path / "kept")
    way(paths[1])
    (tmp_path / "saved" / "checkpoint_registry.json").unlink()
    with pytest.raises(UnreadableCheckpointError, match="cannot be read now"):
        manager.get_latest()
    with pytest.raises(UnreadableCheckpointError) as error:
        manager.load(paths[1])
    assert "delete" not in str(error.value)
    paths[1].rename(tmp_path / "moved")
    kept.rename(paths[1])
    assert manager.get_latest() == paths[1]


# -- what is damaged


def test_damaged_ones_are_set_aside_only_when_there_is_a_whole_one(paths):
    for step in (10, 20):
        paths.checkpoint(step).write_bytes(b"x")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"none of the checkpoints in .* is intact"):
            last_readable(paths, first_rank=True)
    assert len(paths.saved()) == 2
    write_checkpoint(paths.best, {"step": 5})  # what the message advises: restore one
    assert last_readable(paths, first_rank=True).content["step"] == 5
    assert not paths.saved() and len(paths.damaged()) == 2
    paths.best.unlink()
    with pytest.raises(CheckpointError, match=r"step-00000010.damaged.*another run_dir"):
        last_readable(paths, first_rank=True)  # it does not start from 0
    with pytest.raises(ConfigError, match="already holds a run"):
        check_no_run(paths)


@given(st.data())
@settings(max_examples=60)
def test_changed_bytes_are_found_to_be_damage_and_nothing_else(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "x.ckpt"
    state = {"step": 1, "weights": torch.arange(50), "name": "x", "list": [1, 2.0, None]}
    write_checkpoint(path, state)
    whole = path.read_bytes()
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        how = data.draw(st.sampled_from(["flip", "cut", "drop", "insert"]))
        if how == "flip" and content:
            content[at] ^= data.draw(st.integers(1, 255))
        elif how == "cut":
            del content[max(1, at) :]
        elif how == "drop":
            del content[at : at + 8]
        else:
            content[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    path.write_bytes(content)
    try:
        read = read_checkpoint(path)
    except DamagedCheckpointError as error:
        assert "x.ckpt" in str(error) and "\n" not in str(error)
    else:  # bytes that mean nothing: padding, times, names of the archive
        assert torch.equal(read["weights"], state["weights"]) and read["step"] == 1


@given(st.data())
@settings(max_examples=40)
def test_changed_pickles_with_right_checksums_run_nothing_and_are_damage(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("pickle") / "x.ckpt"
    write_checkpoint(path, {"step": 1, "weights": torch.arange(5)})
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = next(each for each in parts if each.endswith("data.pkl"))
    content = bytearray(parts[name])
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    parts[name] = bytes(content)
    with zipfile.ZipFile(path, "w") as archive:
        for each, part in parts.items():
            archive.writestr(each, part)
    try:
        assert isinstance(read_checkpoint(path), dict)
    except CheckpointError as error:
        assert "x.ckpt" in str(error)


def test_one_that_is_not_there_is_neither(tmp_path):
    with pytest.raises(NoCheckpointError):
        read_checkpoint(tmp_path / "none.ckpt")


# -- links that lead elsewhere


@pytest.fixture
def mine(tmp_path):
    """A file that nothing may write to."""
    file = tmp_path / "mine"
    file.write_text("mine")
    return file


def test_a_planted_link_is_never_written_through(tmp_path, mine):
    paths = RunPaths(tmp_path / "run")
    paths.make()
    targets = [paths.checkpoint(1), paths.best, paths.config, paths.root / "metrics.csv"]
    for target in targets:
        (target.parent / f".{target.name}.tmp").symlink_to(mine)
        (target.parent / f".{target.name}").symlink_to(mine)
        target.symlink_to(mine)
    write_checkpoint(targets[0], {"step": 1})
    paths.keep_as_best(targets[0])
    paths.write_config({"a": 1})
    replace_text(targets[3], "step\n")
    assert mine.read_text() == "mine"
    assert all(target.is_file() and not target.is_symlink() for target in targets)
    assert read_checkpoint(paths.best)["step"] == 1


def test_a_link_in_place_of_the_lock_is_refused(tmp_path, mine):
    (tmp_path / ".lock").symlink_to(mine)
    with pytest.raises(ConfigError, match="cannot be written to"), locked(tmp_path):
        pass
    assert mine.read_text() == "mine"


def test_a_replaced_file_has_the_permissions_of_a_new_one(tmp_path):
    before = os.umask(0o027)
    try:
        replace_text(tmp_path / "a", "x")
        (tmp_path / "b").write_text("x")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"}
    assert modes == {0o640}


def test_a_write_that_fails_leaves_the_file_before_and_nothing_else(tmp_path):
    file = tmp_path / ("n" * 255)  # the longest name there is
    replace_text(file, "before")
    with pytest.raises(KeyboardInterrupt), replacing(file) as new:
        new.write_text("half")
        raise KeyboardInterrupt
    assert file.read_text() == "before" and os.listdir(tmp_path) == [file.name]


def test_a_device_is_written_to_and_not_replaced():
    replace_text(Path("/dev/null"), "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
