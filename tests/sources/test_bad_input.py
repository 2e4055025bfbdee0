"""Files of every kind that are damaged before or after they are opened: one sentence, or right."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import traceback
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import torch

from penstock import PlanError, SourceError, StreamLoader, open_source
from penstock.sources.ragged_rows import new_buffers
from penstock.sources.storage import LocalFile
from tests.cases import each_once
from tests.sources.bad_files import KINDS, TABLE, files_of, opened, read_all


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))


def cut(path, share):
    largest = max(files_of(path), key=lambda file: file.stat().st_size)
    os.truncate(largest, int(largest.stat().st_size * share))


def overwrite(path):
    for file in files_of(path):
        file.write_bytes(np.random.default_rng(1).bytes(file.stat().st_size))


NOBODY = 65534
FAULTS = {
    "emptied": lambda path: [os.truncate(file, 0) for file in files_of(path)],
    "cut short": lambda path: cut(path, 0.4),
    "without its end": lambda path: cut(path, 0.98),
    "overwritten": overwrite,
    "gone": lambda path: [file.unlink() for file in files_of(path)],
}
# bytes are bytes: a file of tokens says nothing about itself
NOT_NOTICED = (".bin", "overwritten", False)


@pytest.fixture(params=KINDS)
def path(request, tmp_path):
    path = Path(tmp_path, request.param)
    KINDS[request.param](path)
    for file in files_of(path):
        os.utime(file, (1e9, 1e9))  # long ago: a change is a change of its time
    return path


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("opened_before", [False, True])
def test_a_damaged_file_is_refused_in_a_sentence_or_still_right(path, fault, opened_before):
    source = opened(path)
    before = read_all(source)
    FAULTS[fault](path)
    try:
        found = read_all(source if opened_before else opened(path))
    except (SourceError, PlanError) as error:
        assert "\n" not in str(error) and len(str(error)) < 700
        return
    same = all(np.array_equal(found[name], rows) for name, rows in before.items())
    shorter = path.suffix == ".bin" and len(found[""]) < len(before[""])
    assert same or shorter or (path.suffix, fault, opened_before) == NOT_NOTICED


def replace(path):
    for file in files_of(path):
        other = file.with_name("other")
        shutil.copyfile(file, other)
        overwrite(other)
        os.replace(other, file)


def rows_of(batch, count):
    """Return the bytes of each sample of a batch."""
    fields = batch if isinstance(batch, dict) else {"": batch}
    found = [b""] * count
    for each in fields.values():
        dense = each.to_dense() if isinstance(each, torch.Tensor) else each.nested().unbind()
        found = [row + dense[i].numpy().tobytes() for i, row in enumerate(found)]
    return found


def stream_through(path, fault):
    """Stream three epochs, with a fault in the second one: right, or one sentence."""
    source = opened(path)
    size, options = max(2, len(source) // 10), {"block_samples": max(2, len(source) // 10)}
    with StreamLoader(source, size, seed=1, window_blocks=2, drop_last=False, **options) as loader:
        right = {}
        for epoch in range(3):
            for step, batch in enumerate(loader):
                numbers = loader.samples_at(step, epoch).tolist()
                for number, row in zip(numbers, rows_of(batch, len(numbers)), strict=True):
                    assert right.setdefault(number, row) == row or not epoch
                if (epoch, step) == (1, 0):
                    fault(path)


def in_a_child(function, *args):
    """Run a function in a process of its own, and return the sentence that refused it, or ""."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function(*args)
            code = 0
        except (SourceError, PlanError) as error:
            os.write(send, str(error).encode())
            code = 0
        except BaseException:  # noqa: BLE001 - it must not go on as a second run of the tests
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(send)
    with open(receive, "rb") as answer:
        said = answer.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "\n" not in said and len(said) < 700
    return said


@pytest.mark.parametrize(
    ("path", "fault"),
    each_once([*KINDS], ["cut short", "overwritten", "replaced"]),
    indirect=["path"],
)
def test_a_file_that_changes_under_a_running_stream_is_refused_or_still_right(path, fault):
    read_all(opened(path))  # libraries are imported here
    # a process of its own: touching lost pages would end it
    in_a_child(stream_through, path, {**FAULTS, "replaced": replace}[fault])


def test_a_file_that_another_program_has_locked_is_refused_or_right(path):
    files = [file.open("rb+") for file in files_of(path)]
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX)
    said = in_a_child(lambda: read_all(opened(path)))
    assert ("locked" in said) == (path.name in ("x.h5", "x.h5ad", "4.nc"))
    for file in files:
        file.close()
    read_all(opened(path))  # it is only the lock


def as_nobody(path, source):
    for file in files_of(path):
        file.chmod(0)
    if os.getuid() == 0:  # whom nothing is forbidden
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    read_all(source or opened(path))


@pytest.mark.parametrize(
    ("path", "opened_before"), each_once([*KINDS], [False, True]), indirect=["path"]
)
def test_a_file_that_must_not_be_read_is_refused_with_the_reason(path, opened_before):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        Path(folder).chmod(0o755)
        path = path.rename(Path(folder, path.name))
        source = opened(path)
        read_all(source)
        said = in_a_child(as_nobody, path, source if opened_before else None)
    assert "permission denied" in said or (opened_before and not said)


@pytest.mark.parametrize("form", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"])
@pytest.mark.parametrize("records", [0, 1, 5])
def test_a_netcdf_file_that_misses_one_byte_is_refused(tmp_path, form, records):
    path = tmp_path / "x.nc"
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.title = "a title"
        file.createDimension("time", None if records else 7)
        file.createDimension("x", 4)
        file.createVariable("a", "f8", ("time", "x")).units = "m"
        if records != 1:
            file.createVariable("b", "i4", ("time", "x"))
        for variable in file.variables.values():
            variable[:] = np.ones((records or 7, 4))
    assert len(open_source(path)) == (records or 7)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(SourceError, match="the file is truncated"):
        open_source(path)


@pytest.mark.parametrize("path", ["x.arrow", "stream.arrow"], indirect=True)
def test_pages_that_change_after_a_check_are_named_and_not_what_they_hold(path, monkeypatch):
    source, check = opened(path), LocalFile.verify
    start, stop = 0, 7
    out = new_buffers(source, source.fields, start, stop)

    def verify_and_write(file):
        check(file)
        with path.open("r+b") as pages:  # the same pages: the file is not cut
            pages.write(written.read_bytes())

    written = path.with_name("written")
    other = TABLE.set_column(1, "text", [TABLE["text"].to_pylist()[::-1]])
    KINDS[path.name](written, table=other)
    assert written.stat().st_size == path.stat().st_size
    monkeypatch.setattr(LocalFile, "verify", verify_and_write)
    with pytest.raises(SourceError, match="has changed while it was read"):
        source.read(start, stop, out)
