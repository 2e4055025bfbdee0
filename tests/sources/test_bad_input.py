"""Files of every kind that are damaged before or after they are opened: one sentence, or right."""

from __future__ import annotations

import os
from pathlib import Path

import netCDF4
import numpy as np
import pytest

from penstock import PlanError, SourceError, open_source
from tests.sources.bad_files import KINDS, files_of, opened, read_all


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))


def cut(path, share):
    largest = max(files_of(path), key=lambda file: file.stat().st_size)
    os.truncate(largest, int(largest.stat().st_size * share))


def overwrite(path):
    for file in files_of(path):
        file.write_bytes(np.random.default_rng(1).bytes(file.stat().st_size))


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
