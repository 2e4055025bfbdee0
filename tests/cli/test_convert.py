"""What is converted holds the same data, appears when it is complete, and replaces nothing."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
import zarr

from penstock import StreamLoader, open_source
from penstock.cli.convert import check_conversion, geometry, run_convert, write_zarr
from penstock.datasets import JASPERSteeringDataset, build_steering_directory, validate_dataset
from penstock.errors import ConfigError, SourceError
from penstock.sources.base import Field
from penstock.testing import same_batch
from penstock.testing.watched import WatchedSource


def quietly(done, total):
    """Progress that nobody looks at."""


def rows_of(source, name=""):
    field = source.fields[name]
    out = np.empty((len(source), *field.shape), field.dtype)
    source.read(0, len(source), {name: out})
    return out


@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_an_array_becomes_zarr_that_streams(tmp_path, chunk_rows):
    rows = np.random.default_rng(0).standard_normal((1000, 16), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    told = []
    target = tmp_path / "made" / "rows.zarr"
    check_conversion(tmp_path / "rows.npy", target, chunk_rows)(lambda *done: told.append(done))
    assert told[-1] == (1000, 1000)
    source = open_source(target)
    assert np.array_equal(rows_of(source), rows)
    assert source.block_samples == (chunk_rows or 1000)
    with StreamLoader(target, 100, drop_last=False) as loader:
        assert torch.cat(list(loader)).sum().item() == pytest.approx(rows.sum(), rel=1e-3)
    assert [path.name for path in target.parent.iterdir()] == ["rows.zarr"]


def test_named_fields_become_a_group_and_zarr_is_rechunked(tmp_path):
    group = zarr.create_group(tmp_path / "old.zarr")
    x, y = np.arange(600).reshape(300, 2), np.arange(300, dtype=np.int16)
    group.create_array("x", data=x, chunks=(300, 1))
    group.create_array("y", data=y, chunks=(300,))
    check_conversion(tmp_path / "old.zarr", tmp_path / "new.zarr", 10)(quietly)
    source = open_source(tmp_path / "new.zarr")
    assert np.array_equal(rows_of(source, "x"), x) and np.array_equal(rows_of(source, "y"), y)
    assert source.block_samples == 10


def test_a_hugging_face_directory_becomes_zarr(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_dict({"x": [i / 2 for i in range(50)], "y": list(range(50))})
    made.save_to_disk(tmp_path / "hub")
    check_conversion(tmp_path / "hub", tmp_path / "hub.zarr")(quietly)
    assert rows_of(open_source(tmp_path / "hub.zarr"), "y").tolist() == list(range(50))


def test_a_steering_directory_becomes_hdf5_with_the_same_batches(tmp_path):
    directory = build_steering_directory(tmp_path / "data", pairs=60, embedding_dim=8)
    check_conversion(directory, tmp_path / "h5")(quietly)
    assert sorted(path.name for path in (tmp_path / "h5").iterdir()) == [
        "config.json",
        "dataset.h5",
    ]
    assert validate_dataset(tmp_path / "h5").ok
    one, other = (JASPERSteeringDataset(where, "train") for where in (directory, tmp_path / "h5"))
    assert same_batch(one.__getbatch__(np.arange(20)), other.__getbatch__(np.arange(20)))


def test_memory_does_not_grow_with_the_data(tmp_path):
    peaks = []
    for rows in (4_000, 16_000):
        np.save(tmp_path / f"{rows}.npy", np.zeros((rows, 256), np.float32))
        source = open_source(tmp_path / f"{rows}.npy")
        tracemalloc.start()
        write_zarr(source, tmp_path / f"{rows}.zarr", 8, quietly)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] < 4_000 * 1024


def test_chunks_are_about_a_megabyte_and_shards_hold_whole_chunks():
    assert geometry(Field((1 << 20,), np.dtype("f8")), 100, None) == (1, 64)
    assert geometry(Field((), np.dtype("u1")), 3_000_000, None) == (1 << 20, 3 << 20)


# -- refusals


class Failing(WatchedSource):
    """Breaks in the second shard."""

    def read(self, start, stop, out):
        if start:
            raise SourceError("the disk is gone")
        super().read(start, stop, out)


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path):
    source = Failing(open_source(np.arange(1000)))
    with pytest.raises(SourceError, match="the disk is gone"):
        write_zarr(source, tmp_path / "new.zarr", 2, quietly)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_never_overwritten(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(3))
    (tmp_path / "there").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        check_conversion(tmp_path / "rows.npy", tmp_path / "there")
    with pytest.raises(ConfigError, match="at least 1 row"):
        check_conversion(tmp_path / "rows.npy", tmp_path / "new", 0)
    with pytest.raises(ConfigError, match=r"'new.parquet' ends in '.parquet', and a Zarr dir"):
        check_conversion(tmp_path / "rows.npy", tmp_path / "new.parquet")
    assert (tmp_path / "there").read_text() == "mine"


def test_the_command_converts_refuses_and_fails_by_its_exit_code(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", np.arange(100))
    command = [sys.executable, "-m", "penstock", "convert", tmp_path / "rows.npy"]
    done = subprocess.run(
        [*command, tmp_path / "rows.zarr"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and "rows.zarr written" in done.stdout, done.stderr
    for source, target, code, message in (
        ("nowhere.npy", "new", 2, "there is nothing at"),
        ("rows.npy", "rows.zarr", 2, "is there already"),
        ("rows.npy", "rows.npy/inside", 1, "File exists"),
    ):
        with pytest.raises(SystemExit) as left:
            run_convert(tmp_path / source, tmp_path / target, chunk_rows=None)
        assert left.value.code == code and message in capsys.readouterr().err
