"""Stores of rows, written by the libraries of their fields and compared with these."""

import io
import json
import os
import tarfile
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import soundfile
import torch
import webdataset
import zarr
from PIL import Image

from penstock import SourceError, StreamLoader, open_source
from penstock.atomic_files import cache_directory
from penstock.sources.npy import NpySource
from tests.s3_server import Server
from tests.sources.ragged_contract import check, text

RNG = np.random.default_rng(0)
N = 60
LISTS = [RNG.integers(0, 99, RNG.integers(0, 6)).astype(np.int32) for _ in range(N)]
WORDS = ["é" * int(RNG.integers(0, 4)) for _ in range(N)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "indexes"


def make_old(*paths):
    """Set back the time of modification: indexes of new files are not saved."""
    for path in paths:
        os.utime(path, (1, 1))


# -- tables


def a_table():
    points = pa.array(
        [[[1.0, 2.0]] * len(row) for row in LISTS], pa.list_(pa.list_(pa.float32(), 2))
    )
    lists = pa.array([row.tolist() for row in LISTS], pa.list_(pa.int32()))
    return pa.table({"i": np.arange(N), "x": lists, "word": WORDS, "points": points})


EXPECTED = {
    "i": np.arange(N),
    "x": LISTS,
    "word": text(WORDS),
    "points": [np.tile(np.array([[1, 2]], "f4"), (len(row), 1)) for row in LISTS],
}


def test_lists_and_strings_of_tables(tmp_path, cache):
    table = a_table()
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=17)
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=13)
    large = table.cast(
        pa.schema(
            [
                pa.field("i", pa.int64()),
                pa.field("x", pa.large_list(pa.int32())),
                pa.field("word", pa.large_string()),
                table.schema.field("points"),
            ]
        )
    )
    parts = pa.concat_tables([table.slice(0, 21), table.slice(21)])
    for data in (table, large, parts, tmp_path / "x.arrow", tmp_path / "x.parquet"):
        check(open_source(data), EXPECTED)
    assert not any(cache.rglob("*")) or not list(cache.glob("*/*"))  # the file is too new
    make_old(tmp_path / "x.parquet")
    for _ in range(2):
        check(open_source(tmp_path / "x.parquet"), EXPECTED)
    assert len(list(cache.glob("*/*"))) == 3  # one for each column of lists or strings


def test_missing_lists_are_refused():
    with pytest.raises(SourceError, match="'x' has 1 missing values"):
        open_source(pa.table({"x": [[1], None]}))


# -- tokens


def test_tokens_are_what_numpy_maps(tmp_path):
    tokens = RNG.integers(0, 50_000, 1000).astype(np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    source = open_source(tmp_path / "train.bin", dtype="uint16")
    mapped = np.memmap(tmp_path / "train.bin", np.uint16, "r")
    assert np.array_equal(source.view(0, 1000)[""], mapped)
    with StreamLoader(source.windows(17), 10, shuffle=False) as loader:
        batch = next(iter(loader))  # as nanoGPT cuts them: x and y are one apart
    assert np.array_equal(batch.numpy()[3], mapped[3:20])
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, 1000
    (tmp_path / "llm.bin").write_bytes(header.tobytes() + tokens.tobytes())
    source = open_source(tmp_path / "llm.bin", dtype=np.uint16)
    assert np.array_equal(source.view(0, len(source))[""], tokens)
    with pytest.raises(SourceError, match="of 2 bytes each"):
        open_source(tmp_path / "llm.bin", dtype="uint32")
    for options, says in (
        ({}, "pass its dtype"),
        ({"dtype": "f99"}, "not a dtype"),
        ({"dtype": "V3000"}, "whole number"),
        ({"dtype": "O"}, "no fixed size"),
    ):
        with pytest.raises(SourceError, match=says):
            open_source(tmp_path / "train.bin", **options)
    rows = open_source(tmp_path / "train.bin", dtype="u2", shape=(10,))
    assert rows.view(1, 2)[""].tolist() == [tokens[10:20].tolist()]


# -- JSON lines


def test_json_lines(tmp_path, cache):
    rows = [
        {"i": i, "word": WORDS[i], "x": LISTS[i].tolist(), "f": i / 2 if i else 0, "flag": i > 3}
        for i in range(N)
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    expected = {
        "i": np.arange(N), "word": text(WORDS), "x": LISTS, "f": np.arange(N) / 2,
        "flag": np.arange(N) > 3,
    }  # fmt: skip
    make_old(path)
    for _ in range(2):  # from an index that is new, and that is remembered
        check(open_source(path), expected)
    assert len(list(cache.glob("*/*"))) == 1
    assert list(open_source(path, fields=["x", "i"]).fields) == ["x", "i"]
    source = open_source(path)
    path.write_text(path.read_text().replace('"i": 7', '"i": []'))
    with pytest.raises(SourceError, match=r"changed|JSON|truncated"):
        source.read(0, N, {"i": np.empty(N, np.int64)})


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("", "has no lines"),
        ('{"a": 1}\n{"b": 1}', "line 2 of .* has no 'a'"),
        ('{"a": 1}\n{"a": "x"}', "'a' in line 2 .* but was int before"),
        ('{"a": null}', "'a' in line 1 .* is None"),
        ('{"a": [["x"]]}', "numbers, strings or lists"),
        ('{"a": 100000000000000000000}', "'a' in line 1"),
        ('{"a": 1}\n{"a": ', "line 2 of .* is not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "has no keys"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_json_lines_that_cannot_be_fields(tmp_path, lines, says):
    (tmp_path / "x.jsonl").write_text(lines)
    with pytest.raises(SourceError, match=says):
        open_source(tmp_path / "x.jsonl")


# -- folders, patterns and archives


def test_folders_of_arrays_images_and_sound(tmp_path, cache):
    arrays = [RNG.standard_normal((4, 3)) for _ in range(9)]
    images = [RNG.integers(0, 255, (8, 6, 3), np.uint8) for _ in range(9)]
    sounds = [RNG.uniform(-1, 1, 100 + i) for i in range(9)]
    for folder in ("n", "i", "s"):
        (tmp_path / folder).mkdir()
    for i in range(9):
        np.save(tmp_path / "n" / f"{i}.npy", arrays[i])
        Image.fromarray(images[i]).save(tmp_path / "i" / f"{i}.png")
        soundfile.write(tmp_path / "s" / f"{i}.wav", sounds[i], 8000, "FLOAT")
    (tmp_path / "n" / "README.md").write_text("not a sample")
    read = [soundfile.read(tmp_path / "s" / f"{i}.wav", dtype="float32")[0] for i in range(9)]
    make_old(*tmp_path.glob("[nis]/*.*"))
    for _ in range(2):
        check(open_source(tmp_path / "n"), {"": np.stack(arrays)})
        check(open_source(tmp_path / "i"), {"": np.stack(images)})
        check(open_source(str(tmp_path / "s" / "*.wav")), {"": read})
    assert len(list(cache.glob("*/*"))) == 3
    small = open_source(tmp_path / "i", size=(4, 5), mode="L")
    assert small.fields[""].shape == (4, 5)
    with StreamLoader(tmp_path / "s", 3, shuffle=False) as loader:
        batch = next(iter(loader))
    assert np.array_equal(batch[2].numpy(), read[2])
    # a file that changes is noticed: by a new index, or by an open source
    source = open_source(tmp_path / "n")
    np.save(tmp_path / "n" / "3.npy", np.zeros((5, 3)))
    assert open_source(tmp_path / "n").fields[""].ragged
    with pytest.raises(SourceError, match=r"3\.npy has changed while it was read"):
        source.read(0, 9, {"": np.empty((9, 4, 3))})


def test_folders_that_cannot_be_samples(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 2)))
    np.save(tmp_path / "b.npy", np.zeros((2, 3)))
    with pytest.raises(SourceError, match="may differ in their first axis only"):
        open_source(tmp_path)
    (tmp_path / "b.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-4])
    with pytest.raises(SourceError, match=r"cannot read .*b\.npy as array"):
        open_source(tmp_path)
    soundfile.write(tmp_path / "b.wav", np.zeros(10), 8000)
    soundfile.write(tmp_path / "c.wav", np.zeros(10), 16000)
    with pytest.raises(SourceError, match="choose one kind"):
        open_source(tmp_path)
    with pytest.raises(SourceError, match=r"16000 Hz.* 8000 Hz"):
        open_source(str(tmp_path / "*.wav"))
    with pytest.raises(SourceError, match="no file matches"):
        open_source(str(tmp_path / "*.flac"))


def test_an_index_is_only_used_from_a_private_directory(tmp_path, cache):
    np.save(tmp_path / "0.npy", np.zeros(3))
    make_old(tmp_path / "0.npy")
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    open_source(str(tmp_path / "*.npy"))
    assert not list(cache.iterdir())
    cache.chmod(0o700)
    open_source(str(tmp_path / "*.npy"))
    (saved,) = cache.glob("*/*")
    saved.write_bytes(b"damaged")
    assert len(open_source(str(tmp_path / "*.npy"))) == 1
    assert cache_directory() == cache.parent


def test_an_archive_is_what_webdataset_reads(tmp_path):
    path, images = tmp_path / "x.tar", RNG.integers(0, 255, (9, 8, 6, 3), np.uint8)
    with webdataset.TarWriter(str(path)) as sink:
        for i in range(9):
            sample = {"__key__": f"{i:03d}", "cls": i, "png": images[i], "txt": WORDS[i]}
            sink.write(sample | {"npy": np.full((3,), i, "f4")})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = list(webdataset.WebDataset(str(path), shardshuffle=False).decode("rgb8"))
    source = open_source(path)
    expected = {
        "cls": np.array([sample["cls"] for sample in theirs]),
        "npy": np.stack([sample["npy"] for sample in theirs]),
        "png": np.stack([sample["png"] for sample in theirs]),
        "txt": text([sample["txt"] for sample in theirs]),
    }
    check(source, {name: expected[name] for name in source.fields})
    assert np.array_equal(expected["png"], images)
    assert list(open_source(path, fields=["txt", "cls"]).fields) == ["txt", "cls"]
    raw = path.read_bytes()
    path.write_bytes(raw[:3000])
    with pytest.raises(SourceError, match=r"truncated|empty header"):
        open_source(path)
    with pytest.raises(SourceError, match=r"has changed while it was read"):
        source.read(0, 9, {"cls": np.empty(9, np.int64)})
    with tarfile.open(path, "w") as archive:
        for name in ("a.txt", "b.cls"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(SourceError, match=r"'b' of .* has no file b\.txt"):
        open_source(path)
    huge = tarfile.TarInfo("a.txt")
    huge.size = 8**11 - 1
    path.write_bytes(huge.tobuf())
    with pytest.raises(SourceError, match=r"truncated|empty header"):
        open_source(path)


# -- AnnData


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Files of anndata: sparse, dense and by columns, in both formats; and what they hold."""
    folder = tmp_path_factory.mktemp("cells")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import anndata

        names = pd.Index([f"cell{i}" for i in range(N)], dtype=object)
        genes = pd.Index([f"gene{i}" for i in range(20)], dtype=object)
        kinds = pd.Categorical.from_codes(np.arange(N) % 3, pd.Index(["a", "b", "c"], dtype=object))
        note = pd.Series([f"text{i}" for i in range(N)], dtype=object, index=names)
        obs = pd.DataFrame({"kind": kinds, "i": np.arange(N), "note": note}, index=names)
        matrix = sp.random(N, 20, 0.2, "csr", np.float32, random_state=1)
        for name, x in (("csr", matrix), ("dense", matrix.toarray()), ("csc", matrix.tocsc())):
            var = pd.DataFrame(index=genes)
            made = anndata.AnnData(x, obs=obs, var=var, layers={"twice": x * 2})
            made.write_h5ad(folder / f"{name}.h5ad", compression="gzip")
            made.write_zarr(folder / f"{name}.zarr")
    return folder, matrix


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
def test_cells_are_what_anndata_wrote(cells, suffix):
    folder, matrix = cells
    values = [matrix.data[a:b] for a, b in zip(matrix.indptr, matrix.indptr[1:], strict=False)]
    columns = [matrix.indices[a:b] for a, b in zip(matrix.indptr, matrix.indptr[1:], strict=False)]
    obs = {"kind": (np.arange(N) % 3).astype(np.int8), "i": np.arange(N)}
    source = open_source(folder / f"csr.{suffix}")
    check(source, {"X": values, "X.indices": columns, **obs})
    assert source.categories("kind") == ["a", "b", "c"]
    check(open_source(folder / f"dense.{suffix}"), {"X": matrix.toarray(), **obs})
    with pytest.raises(SourceError, match=r"CSC.*tocsr"):
        open_source(folder / f"csc.{suffix}")
    with pytest.raises(SourceError, match=r"'note' of .* not numbers"):
        open_source(folder / f"csr.{suffix}", fields=["note"])
    layer = open_source(folder / f"csr.{suffix}", fields=["layers/twice", "i"])
    for dense in (False, True):
        source = open_source(folder / f"csr.{suffix}", dense=dense)
        seen = []
        with StreamLoader(source, 7, block_samples=8, window_blocks=2, drop_last=False) as loader:
            for batch in loader:
                assert batch["X"].layout == (torch.strided if dense else torch.sparse_csr)
                found = batch["X"] if dense else batch["X"].to_dense()
                assert np.array_equal(found.numpy(), matrix[batch["i"].numpy()].toarray())
                assert set(batch) == {"X", "kind", "i"}
                seen += batch["i"].tolist()
        assert sorted(seen) == list(range(N))
    with StreamLoader(layer.select(np.arange(10, 30)), 20, shuffle=False) as loader:
        found = next(iter(loader))["layers/twice"].to_dense().numpy()
    assert np.array_equal(found, matrix[10:30].toarray() * 2)


def test_damaged_cells_are_refused(cells, tmp_path):
    import h5py

    folder, matrix = cells

    def damaged(change):
        path = tmp_path / "x.h5ad"
        path.write_bytes((folder / "csr.h5ad").read_bytes())
        with h5py.File(path, "r+") as file:
            change(file)
        return path

    def decrease(file):
        file["X/indptr"][5] = 10**6

    def huge(file):
        file["X"].attrs["shape"] = np.array([10**18, 20])

    def widen(file):
        file["X/indices"][3] = 10**9

    def shorten(file):
        del file["X/data"]
        file["X/data"] = matrix.data[:-3]

    for change, says in (
        (decrease, "decrease at sample 5"),
        (huge, "write or copy"),
        (shorten, "write or copy"),
    ):
        with pytest.raises(SourceError, match=says):
            open_source(damaged(change))
    with StreamLoader(damaged(widen), 4) as loader, pytest.raises(SourceError, match="columns"):
        list(loader)
    path = tmp_path / "cut.h5ad"
    path.write_bytes((folder / "csr.h5ad").read_bytes()[:2000])
    with pytest.raises(SourceError, match="the file is truncated"):
        open_source(path)


def test_sizes_that_cannot_be_are_refused_at_once(tmp_path):
    for items in (0, 10**12):
        group = zarr.open_group(tmp_path / f"{items}.zarr", mode="w")
        group.attrs["encoding-type"] = "anndata"
        group.create_group("obs").attrs["column-order"] = []
        x = group.create_group("X")
        x.attrs.update({"encoding-type": "csr_matrix", "shape": [10**12, 20]})
        for name, size in (("data", items), ("indices", items), ("indptr", 10**12 + 1)):
            x.create_array(name, shape=(size,), dtype="i8", chunks=(10**6,))
        with pytest.raises(SourceError, match=r"of this machine's memory|damaged"):
            open_source(tmp_path / f"{items}.zarr")
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000000,), }".ljust(
        118
    )
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "0.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header.encode())
    with pytest.raises(SourceError, match=r"cannot read .* as array"):
        open_source(tmp_path / "n")


# -- object storage


def test_npy_parquet_and_cells_on_object_storage(tmp_path, cells):
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    data = RNG.standard_normal((50, 3)).astype("f4")
    np.save(bucket / "x.npy", data)
    pq.write_table(a_table(), bucket / "x.parquet", row_group_size=17)
    (cells[0] / "csr.zarr").rename(bucket / "csr.zarr")
    server = Server(tmp_path)
    try:
        options = server.options(retry_seconds=2)
        source = open_source("s3://bucket/x.npy", **options)
        check(source, {"": data})
        assert source.fingerprint() == NpySource(bucket / "x.npy").fingerprint()
        check(open_source("s3://bucket/x.parquet", **options), EXPECTED)
        table = open_source("s3://bucket/x.parquet", fields=["word"], **options)
        check(table, {"word": text(WORDS)})
        with StreamLoader(open_source("s3://bucket/csr.zarr", **options), N) as loader:
            batch = next(iter(loader))
        assert np.array_equal(batch["X"].to_dense(), cells[1][batch["i"].numpy()].toarray())
        np.save(bucket / "x.npy", data + 1)
        with pytest.raises(SourceError, match="has changed"):
            source.read(0, 50, {"": np.empty((50, 3), "f4")})
        with pytest.raises(SourceError, match="nothing at"):
            open_source("s3://bucket/y.npy", **options)
    finally:
        (bucket / "csr.zarr").rename(cells[0] / "csr.zarr")
        server.kill()
