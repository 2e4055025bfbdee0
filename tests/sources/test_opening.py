"""open_source picks by what it is given."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zarr

from penstock import sources
from penstock.errors import SourceError
from penstock.sources import open_source, write_recording

DATA = np.arange(30, dtype="f4").reshape(10, 3)


@pytest.fixture
def place(tmp_path):
    np.save(tmp_path / "a.npy", DATA)
    zarr.create_array(tmp_path / "a.zarr", data=DATA, chunks=(4, 3))
    zarr.create_array(tmp_path / "plain_name", data=DATA, chunks=(4, 3), zarr_format=2)
    pq.write_table(pa.table({"x": DATA[:, 0]}), tmp_path / "a.parquet")
    (tmp_path / "tables").mkdir()
    pq.write_table(pa.table({"x": DATA[:, 0]}), tmp_path / "tables/0.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), pa.schema({"x": pa.float32()})) as writer:
        writer.write_table(pa.table({"x": DATA[:, 0]}))
    write_recording(tmp_path / "recording", {"VOLTAGE": DATA})
    np.save(tmp_path / "older.npy", np.zeros((10, 3, 9), "f4"))
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.npy", "NpySource"),
        ("a.zarr", "ZarrSource"),
        ("plain_name", "ZarrSource"),
        ("a.parquet", "ArrowSource"),
        ("tables", "ArrowSource"),
        ("a.arrow", "ArrowSource"),
        ("recording", "RecordingSource"),
        ("older", "RecordingSource"),
    ],
)
def test_paths(place, name, kind):
    for path in (place / name, str(place / name), f"file://{place / name}"):
        source = open_source(path)
        assert (type(source).__name__, len(source)) == (kind, 10)


def test_objects(place):
    table = pa.table({"x": DATA[:, 0]})
    memory = open_source(DATA)
    for given in (DATA, torch.from_numpy(DATA), {"x": DATA, "y": torch.arange(10)}, table, memory):
        assert len(open_source(given)) == 10
    assert open_source(memory) is memory
    assert len(open_source([DATA, place / "a.npy", memory])) == 30
    assert list(open_source({"x": place / "a.npy", "y": np.arange(10)}).fields) == ["x", "y"]


def test_options_reach_the_source(place):
    assert len(open_source(place / "a.zarr", axis=1)) == 3
    assert list(open_source(place / "recording", columns=["VOLTAGE"]).fields) == ["VOLTAGE"]
    assert list(open_source(pa.table({"x": [1], "s": ["a"]}), columns=["x"]).fields) == ["x"]


@pytest.mark.parametrize(
    "given", [3, None, "", [], {}, [1, 2], object(), b"bytes", {"x": "no.npy"}]
)
def test_unknown_things_are_refused_in_a_sentence(given):
    with pytest.raises(SourceError) as caught:
        open_source(given)
    assert "\n" not in str(caught.value)


def test_refusals_say_what_was_found(place):
    with pytest.raises(SourceError, match="there is nothing at"):
        open_source(place / "nothing.zarr")
    for name in ("a.txt", "empty"):
        with pytest.raises(SourceError, match="s3://"):
            open_source(place / name)
    with pytest.raises(SourceError, match="colums"):
        open_source(place / "a.npy", colums=["x"])
    with pytest.raises(SourceError, match="no options"):
        open_source(DATA, axis=1)


def test_all_is_true():
    assert all(hasattr(sources, name) for name in sources.__all__)
    assert len(set(sources.__all__)) == len(sources.__all__)


def test_importing_sources_is_light():
    heavy = "torch zarr zarrs numcodecs pyarrow datasets obstore deflate".split()  # noqa: SIM905
    code = f"import penstock.sources, sys; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert run.stdout.strip() == b"[]", run.stderr
