"""Dtypes that cannot be tensors, and dtypes that differ between parts: one sentence, or right."""

from __future__ import annotations

import json

import h5py
import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorstore
import xarray
import zarr

from penstock import PlanError, SourceError, StreamLoader, concatenate, open_source

N = 12
NUMBERS = {  # delivered as they are
    **{name: np.arange(N).astype(name) for name in ("bool", "u1", "u8", "f2", ">f4", "c8", "c16")},
    "i8": np.arange(N) - 2**62,
}
OTHERS = {  # refused: by the source, or by the loader, which makes tensors
    "object": np.array([{"a": 1}, "b", None] * 4, object),
    "text": np.array(["ab", "c"] * 6),
    "bytes": np.array([b"ab", b"c"] * 6),
    "structured": np.array([(1, 2.0)] * N, [("a", "i4"), ("b", "f4")]),
    "void": np.array([b"abcd"] * N).view("V4"),
    "bfloat16": np.arange(N).astype(ml_dtypes.bfloat16),
    "float8": np.arange(N).astype(ml_dtypes.float8_e4m3fn),
    "int4": np.arange(N).astype(ml_dtypes.int4),
    "time": np.arange(N).astype("M8[s]"),
    "long double": np.arange(N).astype("g"),
}


def in_npy(array, path):
    np.save(path / "x.npy", array)
    return path / "x.npy"


def in_h5(array, path):
    with h5py.File(path / "x.h5", "w") as file:
        if array.dtype.kind == "U":
            file.create_dataset("x", data=array.astype(object), dtype=h5py.string_dtype())
        else:
            file["x"] = array
    return path / "x.h5"


def in_zarr(array, path):
    zarr.create_array(path / "x.zarr", data=array, chunks=(4,))
    return path / "x.zarr"


def in_nc(array, path):
    xarray.Dataset({"x": ("t", array)}).to_netcdf(path / "x.nc")
    return path / "x.nc"


def in_folder(array, path):
    for i, row in enumerate(array.reshape(-1, 1)):
        np.save(path / f"{i:02}.npy", row)
    return path


def in_parquet(array, path):
    pq.write_table(pa.table({"x": pa.array(array)}), path / "x.parquet")
    return path / "x.parquet"


STORES = {
    "memory": lambda array, path: array,
    ".npy": in_npy,
    ".h5": in_h5,
    ".zarr": in_zarr,
    ".nc": in_nc,
    "folder": in_folder,
    ".parquet": in_parquet,
    "xarray": lambda array, path: xarray.DataArray(array, dims="t"),
    "tensorstore": lambda array, path: tensorstore.array(array),
}
ITSELF_WRONG = ("tensorstore", ">f4")  # swaps no bytes
# a store of text, whose bytes are delivered
AS_BYTES = [(".parquet", "text"), (".parquet", "bytes")]


@pytest.mark.filterwarnings("ignore")  # of libraries, about dtypes that others may not read
@pytest.mark.parametrize("name", [*NUMBERS, *OTHERS])
@pytest.mark.parametrize("store", STORES)
def test_numbers_are_delivered_and_other_items_are_refused(store, name, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    array = {**NUMBERS, **OTHERS}[name]
    try:
        where = STORES[store](array, tmp_path / "data")
    except (TypeError, ValueError, NotImplementedError):
        return  # the library cannot write it, so nobody can read it
    try:
        with StreamLoader(where, N, shuffle=False) as loader:
            found = next(iter(loader))
    except (SourceError, PlanError) as error:
        assert name in OTHERS
        assert "\n" not in str(error) and len(str(error)) < 400
        assert "dtype" in str(error) or "times" in str(error)
        return
    found = found.get("x", next(iter(found.values()))) if isinstance(found, dict) else found
    assert name in NUMBERS or (store, name) in AS_BYTES
    if name in NUMBERS and (store, name) != ITSELF_WRONG:
        assert found.numpy().dtype == array.dtype.newbyteorder("=")
        assert found.numpy().ravel().tolist() == array.tolist()


A = np.arange(N, dtype="f4")
RAGGED = pa.table({"x": [[1.0] * i for i in range(N)]})
PARTS = {
    "another width": [A, A.astype("f8")],
    "another kind": [A, A.astype("i4")],
    "another shape": [A, A.reshape(4, 3)],
    "ragged": [pa.table({"x": A}), RAGGED],
    "other fields": [{"x": A}, {"y": A}],
}


@pytest.mark.parametrize("parts", PARTS)
def test_parts_of_another_dtype_are_not_concatenated(parts):
    with pytest.raises(SourceError, match="same fields") as caught:
        concatenate(PARTS[parts])
    assert "\n" not in str(caught.value)


def test_files_of_another_dtype_are_not_one_folder(tmp_path):
    folders = {name: tmp_path / name for name in ("arrays", "tables", "lines")}
    for folder in folders.values():
        folder.mkdir()
    for i, part in enumerate((A, A.astype("f8"))):
        np.save(folders["arrays"] / f"{i}.npy", part)
        pq.write_table(pa.table({"x": part}), folders["tables"] / f"{i}.parquet")
    for i, value in enumerate((1, "one")):
        line = json.dumps({"x": value})
        (folders["lines"] / f"{i}.jsonl").write_text(line)
    with pytest.raises(SourceError, match=r"1\.npy has shape .* of float64, and .*0\.npy has"):
        open_source(folders["arrays"])
    with pytest.raises(SourceError, match=r"1\.parquet and .*0\.parquet have different columns"):
        open_source(folders["tables"])
    with pytest.raises(SourceError, match="same fields"):
        open_source(str(folders["lines"] / "*.jsonl"))


@pytest.mark.parametrize("verb", ["patches", "statistics", "steps"])
def test_rows_of_different_lengths_are_refused_where_one_shape_is_needed(verb):
    source = open_source(RAGGED)
    with pytest.raises((SourceError, PlanError)) as caught:
        if verb == "patches":
            source.patches((2,))
        elif verb == "statistics":
            source.statistics(per=0, progress=False)
        else:
            StreamLoader(source, 2, steps=3)
    assert "\n" not in str(caught.value)
