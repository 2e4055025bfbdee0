"""open_source picks by what it is given."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zarr

from penstock import ChunkedDataLoader, sources
from penstock.domains.recording import write_recording
from penstock.errors import PlanError, SourceError
from penstock.sources import open_source

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
    with pytest.raises(SourceError, match=r"nothing at .*did you mean '.*a\.npy'"):
        open_source(place / "a.npz")
    with pytest.raises(SourceError, match="its folder cannot be read"):
        open_source(place / "nowhere" / "a.npy")
    with pytest.raises(SourceError, match="there is nothing at"):
        open_source(place / "nothing.zarr")
    with pytest.raises(SourceError, match="it is empty"):
        open_source(place / "empty")
    with pytest.raises(SourceError, match="colums"):
        open_source(place / "a.npy", colums=["x"])
    (place / "a.bin").write_bytes(bytes(8))
    with pytest.raises(SourceError, match="first axis"):
        open_source(place / "a.bin", dtype="uint16", axis=1)
    for wrong in (DATA.ndim, -DATA.ndim - 1, "time"):
        with pytest.raises(SourceError, match="no axis along="):
            open_source(DATA, along=wrong)
    moved = open_source(DATA, along=-1)
    assert np.array_equal(moved.view(0, len(moved))[""], np.moveaxis(DATA, -1, 0))
    with pytest.raises(SourceError, match="unexpected keyword argument"):
        open_source(DATA, columns=["x"])
    with pytest.raises(SourceError, match="pass them where it is opened"):
        open_source(open_source(DATA), fields=["x"])


def test_fields_are_chosen_in_every_kind_of_source(place):
    table = pa.table({"x": [1.0], "y": [2], "word": ["a"]})
    mapping = {"x": DATA, "y": DATA[:, 0], "z": place / "a.npy"}
    zarr.create_group(place / "g").create_array("x", data=DATA)
    zarr.create_array(place / "g/y", data=DATA)
    for given in (table, mapping, place / "g", [place / "g", place / "g"]):
        for fields in (["x"], ["y", "x"], ("x",)):
            assert list(open_source(given, fields=fields).fields) == list(fields)
        for wrong in ("x", [], [1], ["x", "x"], {"x": 1}, 3):
            with pytest.raises(PlanError, match="fields"):
                open_source(given, fields=wrong)
        with pytest.raises((SourceError, PlanError), match="xx"):
            open_source(given, fields=["xx"])
    assert list(open_source(place / "recording", fields=["VOLTAGE"]).fields) == ["VOLTAGE"]
    for one in (DATA, place / "a.npy", place / "a.zarr"):
        with pytest.raises(SourceError, match="leave out fields="):
            open_source(one, fields=["x"])
    with pytest.raises(SourceError, match="columns is given twice"):
        open_source(table, fields=["x"], columns=["y"])


# -- data that is not read in place: each kind has its nearest way, and that way works


def advised(error):
    """The Python expression in a message."""
    return re.search(r"open_source\(.*\)", str(error)).group()


def write_unread(folder, name):
    """Ten rows in a format that no source reads."""
    path = folder / name
    if path.suffix in (".dat", ".raw"):
        DATA.tofile(path)
    elif path.suffix.lower() == ".csv":
        path.write_text("x,y\n" + "".join(f"{i},{i / 2}\n" for i in range(10)))
    elif path.suffix == ".npz":
        np.savez(path, x=DATA, y=DATA[:, 0])
    elif path.suffix == ".json":
        path.write_text("".join(json.dumps({"x": i}) + "\n" for i in range(10)))
    else:
        torch.save({"x": torch.from_numpy(DATA)}, path)
    return path


UNREAD = "a.dat a.raw a.csv A.CSV a.npz a.json a.pt a.pth"


@pytest.mark.parametrize("name", UNREAD.split())
def test_the_way_that_a_refusal_names_works(tmp_path, monkeypatch, name):
    import pyarrow.csv
    import pyarrow.json  # noqa: F401

    monkeypatch.chdir(tmp_path)
    path = write_unread(tmp_path, name)
    with pytest.raises(SourceError) as caught:
        open_source(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    scope = {"dtype": "f4", "shape": DATA.shape, "pyarrow": pa, "np": np}
    scope |= {"torch": torch, "open_source": open_source, "Path": Path}
    found = eval(advised(caught.value), scope)  # noqa: S307 - what the message says
    assert len(found) == 10


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.nc", "neither HDF5 nor netCDF: it begins with b'123'"),
        ("a.h5", "neither HDF5 nor netCDF"),
        ("a.tar", "write it as a .tar without compression"),
        ("a.bin", "pass its dtype"),
        ("a.jsonl", "not a JSON object"),
        ("a.zip", "not a zip file"),
        ("a.mat", "loadmat"),
        ("a.txt", "ChunkedDataLoader"),
        ("a.xyz", "open_source reads"),
        ("a", "open_source reads"),
    ],
)
def test_other_files_have_a_way_of_their_own(tmp_path, name, says):
    (tmp_path / name).write_bytes(b"123")
    with pytest.raises(SourceError, match=says):
        open_source(tmp_path / name)


def test_folders_and_objects_have_a_way_of_their_own(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.xml").touch()
    with pytest.raises(SourceError, match="ChunkedDataLoader"):
        open_source(tmp_path)
    dataset = torch.utils.data.TensorDataset(torch.arange(10))
    with pytest.raises(SourceError, match="__len__ to ChunkedDataLoader"):
        open_source(dataset)
    with ChunkedDataLoader(dataset, 5) as loader:
        assert len(list(loader)) == 2
    with pytest.raises(SourceError, match="from_pandas"):
        open_source(pandas.DataFrame({"x": [1, 2]}))
    assert len(open_source(pa.Table.from_pandas(pandas.DataFrame({"x": [1, 2]})))) == 2
    with pytest.raises(SourceError, match="torch DataLoader"):
        open_source(iter([1, 2]))


def test_all_is_true():
    assert all(hasattr(sources, name) for name in sources.__all__)
    assert len(set(sources.__all__)) == len(sources.__all__)


@pytest.mark.steady
def test_importing_sources_is_light():
    heavy = "torch zarr zarrs numcodecs pyarrow datasets obstore deflate".split()  # noqa: SIM905
    code = f"import penstock.sources, sys; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert run.stdout.strip() == b"[]", run.stderr
