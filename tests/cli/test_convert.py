"""What is converted holds the same data, appears when it is complete, and replaces nothing."""

import json
import subprocess
import sys
import tracemalloc

import h5py
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch
import xarray
import zarr

from penstock import Standardize, StreamLoader, open_source
from penstock.cli import zarr_writer
from penstock.cli.convert import check_conversion, run_convert, run_stats, source_parts
from penstock.cli.output import exit_codes
from penstock.cli.zarr_writer import geometry
from penstock.domains.steering import (
    JASPERSteeringDataset,
    build_steering_directory,
    validate_dataset,
)
from penstock.errors import ConfigError, SourceError
from penstock.sources.contract import Field
from penstock.testing import WatchedSource, same_batch


def write_zarr(source, target, chunk_rows, progressed):
    zarr_writer.write_parts(source_parts(source), {}, target, chunk_rows, progressed)


def quietly(rows):
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
    check_conversion(tmp_path / "rows.npy", target, chunk_rows).run(told.append)
    assert sum(told) == 1000
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
    check_conversion(tmp_path / "old.zarr", tmp_path / "new.zarr", 10).run(quietly)
    source = open_source(tmp_path / "new.zarr")
    assert np.array_equal(rows_of(source, "x"), x) and np.array_equal(rows_of(source, "y"), y)
    assert source.block_samples == 10


def test_a_hugging_face_directory_becomes_zarr(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_dict({"x": [i / 2 for i in range(50)], "y": list(range(50))})
    made.save_to_disk(tmp_path / "hub")
    check_conversion(tmp_path / "hub", tmp_path / "hub.zarr").run(quietly)
    assert rows_of(open_source(tmp_path / "hub.zarr"), "y").tolist() == list(range(50))


def test_a_steering_directory_becomes_hdf5_with_the_same_batches(tmp_path):
    directory = build_steering_directory(tmp_path / "data", pairs=60, embedding_dim=8)
    check_conversion(directory, tmp_path / "h5").run(quietly)
    assert sorted(path.name for path in (tmp_path / "h5").iterdir()) == [
        "config.json",
        "dataset.h5",
    ]
    assert validate_dataset(tmp_path / "h5").ok
    one, other = (JASPERSteeringDataset(where, "train") for where in (directory, tmp_path / "h5"))
    assert same_batch(one.__getbatch__(np.arange(20)), other.__getbatch__(np.arange(20)))


def test_memory_does_not_grow_with_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_writer, "MAX_THREADS", 2)  # each holds a shard of a megabyte
    peaks = []
    for rows in (8_000, 24_000):
        np.save(tmp_path / f"{rows}.npy", np.zeros((rows, 256), np.float32))
        source = open_source(tmp_path / f"{rows}.npy")
        tracemalloc.start()
        write_zarr(source, tmp_path / f"{rows}.zarr", 16, quietly)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] < 8_000 * 1024


def test_chunks_are_about_a_megabyte_and_shards_hold_whole_chunks():
    assert geometry(Field((1 << 20,), np.dtype("f8")), 100, None) == (1, 64)
    assert geometry(Field((), np.dtype("u1")), 3_000_000, None) == (1 << 20, 3 << 20)


# -- refusals


class Failing(WatchedSource):
    """Breaks from a row on, and remembers what was read."""

    def __init__(self, inner, first_bad):
        super().__init__(inner)
        self.first_bad, self.starts = first_bad, []

    def read(self, start, stop, out):
        if start >= self.first_bad:
            raise SourceError("the disk is gone")
        self.starts.append(start)
        super().read(start, stop, out)


def test_a_conversion_that_was_interrupted_continues(tmp_path):
    rows, target = np.arange(1000), tmp_path / "new.zarr"
    with pytest.raises(SourceError, match="the disk is gone"):
        write_zarr(Failing(open_source(rows), 500), target, 2, quietly)
    assert [path.name for path in tmp_path.iterdir()] == [".new.zarr.converting"]
    journal = tmp_path / ".new.zarr.converting/.penstock-convert"
    journal.write_text(journal.read_text() + '{"shard": ":6')  # killed while it was written
    (tmp_path / ".new.zarr.converting/c/0").write_bytes(b"damaged")  # the first shard, 128 rows
    told, again = [], Failing(open_source(rows), 1000)
    write_zarr(again, target, 2, told.append)
    kept = {128, 256, 384}  # the fourth may not have been complete
    assert 0 in again.starts and not kept & set(again.starts) - {384}
    assert sum(told) == 1000 and np.array_equal(rows_of(open_source(target)), rows)
    assert [path.name for path in tmp_path.iterdir()] == ["new.zarr"]


@pytest.mark.proof
def test_a_conversion_that_is_killed_continues(tmp_path):
    rows = np.random.default_rng(0).standard_normal((200_000, 64)).astype("f4")
    np.save(tmp_path / "rows.npy", rows)
    journal = tmp_path / ".rows.zarr.converting/.penstock-convert"
    command = [sys.executable, "-m", "penstock", "convert", tmp_path / "rows.npy"]
    command += [tmp_path / "rows.zarr", "--chunk-rows", "8"]
    done = []
    for lines in (20, 80):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while not journal.exists() or journal.read_bytes().count(b"\n") < lines:
                assert process.poll() is None
            process.kill()
        done.append(journal.read_bytes().count(b"\n"))
    assert not (tmp_path / "rows.zarr").exists() and done[1] > done[0]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert np.array_equal(rows_of(open_source(tmp_path / "rows.zarr")), rows)


def test_what_another_conversion_left_is_not_used(tmp_path):
    target = tmp_path / "new.zarr"
    with pytest.raises(SourceError, match="the disk is gone"):
        write_zarr(Failing(open_source(np.arange(1000)), 500), target, 2, quietly)
    other = np.arange(1000)[::-1].copy()
    write_zarr(open_source(other), target, 2, quietly)
    assert np.array_equal(rows_of(open_source(target)), other)
    (tmp_path / ".link.zarr.converting").symlink_to(target)
    with pytest.raises(ConfigError, match="symbolic link"):
        write_zarr(open_source(other), tmp_path / "link.zarr", 2, quietly)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("suffix", [".h5", ".nc"])
def test_hdf5_and_netcdf_keep_everything_that_xarray_reads(tmp_path, suffix):
    path, rng = tmp_path / f"a{suffix}", np.random.default_rng(0)
    data = xarray.Dataset(
        {
            "t2m": (("time", "x"), rng.normal(280, 9, (50, 4)), {"units": "K"}),
            "name": (("time",), np.array([f"n{i}" for i in range(50)], object)),
            "crs": ((), np.int32(4326)),
        },
        coords={"time": np.datetime64("2020", "ns") + np.arange(50), "x": np.arange(4.0)},
        attrs={"title": "t"},
    )
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}
    data.to_netcdf(path, encoding={"t2m": packed})
    data[["t2m"]].to_netcdf(path, mode="a", group="inner", encoding={"t2m": packed})
    conversion = check_conversion(path, tmp_path / "new.zarr", 7)
    assert any(
        line.startswith("t2m: 50 rows of int16 [4], chunks of 7") for line in conversion.plan
    )
    assert conversion.plan[-1].startswith("chunks are as asked")
    conversion.run(quietly)
    for group in (None, "inner"):
        with xarray.open_dataset(path, group=group) as wanted:
            made = xarray.open_zarr(tmp_path / "new.zarr", group=group, consolidated=False)
            xarray.testing.assert_identical(made.load(), wanted.load())
    found = open_source(tmp_path / "new.zarr", along="time", fields=["t2m", "inner/t2m"])
    assert np.array_equal(rows_of(found, "inner/t2m"), made.t2m.values.astype("f4"))


def test_folders_and_tables_become_zarr_and_rows_of_different_length_are_refused(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (5, 8, 8, 3), np.uint8)
    waves = np.random.default_rng(0).normal(0, 0.1, (4, 160)).astype("f4")
    for folder in ("images", "arrays", "audio"):
        (tmp_path / folder).mkdir()
    for number, image in enumerate(images):
        PIL.Image.fromarray(image).save(tmp_path / f"images/{number}.png")
        np.save(tmp_path / f"arrays/{number}.npy", image)
    for number, wave in enumerate(waves):
        soundfile.write(tmp_path / f"audio/{number}.wav", wave, 16000, subtype="FLOAT")
    pq.write_table(pa.table({"x": np.arange(9), "y": np.arange(9) / 2}), tmp_path / "t.parquet")
    for name in ("images", "arrays", "audio", "t.parquet"):
        before, target = open_source(tmp_path / name), tmp_path / f"{name}.zarr"
        check_conversion(tmp_path / name, target).run(quietly)
        made = open_source(target)
        assert list(made.fields) == list(before.fields)
        for field in before.fields:
            assert np.array_equal(rows_of(made, field), rows_of(before, field))
    (tmp_path / "words.jsonl").write_text('{"word": "a", "n": 1}\n{"word": "bcd", "n": 2}\n')
    with pytest.raises(SourceError, match=r"samples of \['word'\] have different lengths"):
        check_conversion(tmp_path / "words.jsonl", tmp_path / "words.zarr")
    assert not (tmp_path / "words.zarr").exists()


def test_arrays_of_hdf5_that_cannot_be_converted_are_named_first(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(10)
        file.create_dataset("lists", (10,), h5py.vlen_dtype("i4"))
    with pytest.raises(SourceError, match=r"cannot convert .*a\.h5/lists holds items of dtype"):
        check_conversion(tmp_path / "a.h5", tmp_path / "new.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


def test_what_is_there_is_never_overwritten(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(3))
    (tmp_path / "there").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        check_conversion(tmp_path / "rows.npy", tmp_path / "there")
    with pytest.raises(ConfigError, match="at least 1 row"):
        check_conversion(tmp_path / "rows.npy", tmp_path / "new", 0)
    with pytest.raises(ConfigError, match=r"'new.parquet' ends in '.parquet', but a Zarr dir"):
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
        ("rows.npy", "rows.zarr", 2, "exists already"),
        ("rows.npy", "rows.npy/inside", 1, "File exists"),
    ):
        with pytest.raises(SystemExit) as left, exit_codes(debug=False):
            run_convert(tmp_path / source, tmp_path / target, chunk_rows=None)
        assert left.value.code == code and message in capsys.readouterr().err


def test_statistics_are_printed_and_written_for_standardize(tmp_path, capsys):
    rows = np.random.default_rng(0).normal(280, 10, (50, 3, 4)).astype("f4")
    rows[0, 0, 0] = np.nan
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("x", data=rows, dimension_names=("time", "level", "lon"))
    group.create_array("y", data=np.arange(50), dimension_names=("time",))
    output = tmp_path / "stats.json"
    run_stats(str(tmp_path / "a.zarr"), output, per="level", fields=["x", "y"], along="time")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["field", "mean", "std", "min", "max", "count", "nans"]
    assert [line.split()[0] for line in printed[1:]] == ["x", "y"]
    found = json.loads(output.read_text())
    assert np.allclose(found["x"]["mean"], np.nanmean(rows, axis=(0, 2)))
    assert found["x"]["nans"] == [1, 0, 0] and found["y"]["mean"] == 24.5
    transform = Standardize({"x": found["x"]}, nan=0.0)
    with StreamLoader(tmp_path / "a.zarr", 50, transform=transform) as loader:
        batch = next(iter(loader))
    assert batch["x"].mean(dim=(0, 2)).abs().max() < 1e-3 and batch["y"].dtype == torch.int64
    with pytest.raises(SystemExit) as left, exit_codes(debug=False):
        run_stats(str(tmp_path / "none"), None, per=None)
    assert left.value.code == 2 and "there is nothing at" in capsys.readouterr().err


# -- what the copy keeps


def packed(path, version, **options):
    """An array as xarray writes packed data, with dimension names."""
    data = np.arange(200, dtype="i2").reshape(50, 4)
    array = zarr.create_array(
        path, data=data, chunks=(10, 4), zarr_format=version, overwrite=True, **options
    )
    array.attrs.update(scale_factor=0.01, add_offset=280.0, units="K")
    if version == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = ["time", "x"]
    return data


@pytest.mark.parametrize("version", [2, 3])
def test_attributes_dimension_names_and_fill_value_are_kept(tmp_path, version):
    names = {"dimension_names": ["time", "x"]} if version == 3 else {}
    # in version 2, xarray's _FillValue is the fill value of the array
    data = packed(tmp_path / "p.zarr", version, fill_value=-32767 if version == 2 else 7, **names)
    check_conversion(tmp_path / "p.zarr", tmp_path / "new.zarr").run(quietly)
    made = zarr.open_array(tmp_path / "new.zarr", mode="r")
    assert made.metadata.dimension_names == ("time", "x")
    kept = {"scale_factor": 0.01, "add_offset": 280.0, "units": "K"}
    assert dict(made.attrs) == (kept | {"_FillValue": -32767} if version == 2 else kept)
    assert made.fill_value == (-32767 if version == 2 else 7)
    assert np.array_equal(made[...], data)


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("version", [2, 3])
def test_every_array_of_a_group_is_kept_whatever_its_length_and_kind(tmp_path, version):
    group = zarr.create_group(tmp_path / "g.zarr", zarr_format=version, attributes={"title": "t"})
    group.create_group("img", attributes={"camera": 3})
    wanted = {
        "img/raw": np.arange(100 * 4, dtype="u2").reshape(100, 2, 2),
        "img/deep/mask": np.arange(100) % 2 == 0,
        "label": np.arange(100),
        "lat": np.linspace(-90, 90, 7),
        "crs": np.array(4326, "i4"),
        "empty": np.empty((0, 3), "f4"),
    }
    for name, data in wanted.items():
        group.create_array(name, shape=data.shape, dtype=data.dtype)[...] = data
        group[name].attrs["of"] = name
    group.create_array("names", shape=(3,), dtype="str")[...] = np.array(["a", "bcd", ""], object)
    check_conversion(tmp_path / "g.zarr", tmp_path / "new.zarr").run(quietly)
    made = zarr.open_group(tmp_path / "new.zarr", mode="r")
    assert dict(made.attrs) == {"title": "t"} and dict(made["img"].attrs) == {"camera": 3}
    for name, data in wanted.items():
        assert made[name].dtype == data.dtype and np.array_equal(made[name][...], data), name
        assert dict(made[name].attrs) == {"of": name}
    assert made["names"][...].tolist() == ["a", "bcd", ""]


def test_what_cannot_be_converted_is_refused_before_anything_is_written(tmp_path, capsys):
    group = zarr.create_group(tmp_path / "g.zarr")
    group.create_array("img/raw", data=np.arange(100))
    (tmp_path / "g.zarr/img/raw/zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    with pytest.raises(SystemExit) as left, exit_codes(debug=False):
        run_convert(tmp_path / "g.zarr", tmp_path / "new.zarr", chunk_rows=None)
    assert left.value.code == 2 and "img/raw" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.zarr"]
