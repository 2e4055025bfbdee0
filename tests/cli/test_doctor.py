"""`penstock doctor` on paths, configurations and objects; on the examples, and on every format."""

import json
import runpy
import sys
import tarfile
import wave
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import zarr

from penstock.cli.doctor import run_doctor
from penstock.cli.output import command_output
from tests.cli.projects import new_project

EXAMPLES = Path(__file__).parents[2] / "examples"
MODULE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from penstock import StreamLoader

class Noisy(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)[0] + torch.randn(4)

good = TensorDataset(torch.randn(64, 4))
noisy = Noisy(torch.randn(64, 4))
parts = {"train": good, "val": TensorDataset(good.tensors[0][:8])}
loader = DataLoader(good, batch_size=8)
number = 3

def make():
    return StreamLoader(torch.randn(64, 4), 8)

def needs(folder):
    return folder

class Rows(list):
    def __init__(self, folder=None):
        super().__init__(torch.randn(64, 4))
"""


@pytest.fixture
def examined(tmp_path, capsys):
    """Run the command in this process; return exit code, output and errors."""
    (tmp_path / "users_module.py").write_text(MODULE)
    before = list(sys.path)

    def run(target, *, as_json=False, folder=tmp_path):
        with chdir(folder), pytest.raises(SystemExit) as end:
            with command_output(debug=False):
                run_doctor(str(target), as_json=as_json)
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    yield run
    sys.path[:] = before
    for name in ("users_module", "small_sashimi"):  # imported, and registered, again by each test
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("good", 0, "TensorDataset: 64 samples, read all\nnothing found by 18 checks"),
        ("noisy", 1, "global generator of torch"),
        ("parts", 1, "8 of 8 samples of 'val' are in 'train' too"),
        ("loader", 0, "nothing found"),
        ("make", 0, "nothing found"),
        ("number", 2, "int is not a dataset: name a dataset"),
        ("needs", 2, "needs arguments"),
        ("Rows", 0, "Rows: 64 samples, read all"),
        ("absent", 2, "has no attribute 'absent'"),
    ],
)
def test_an_object_of_a_module_is_examined(examined, name, code, said):
    found, out, err = examined(f"users_module:{name}")
    assert found == code and said in (err if code == 2 else out)


def test_what_cannot_be_examined_is_refused(examined, tmp_path):
    assert "there is no module 'no_such'" in examined("no_such:data")[2]
    assert "there is nothing at" in examined(tmp_path / "nowhere.zarr")[2]
    assert examined(tmp_path / "nowhere.yaml")[0] == 2


def test_findings_are_one_json_object(examined, tmp_path):
    np.save(tmp_path / "x.npy", np.full((50, 3), np.nan, np.float32))
    code, out, _ = examined(tmp_path / "x.npy", as_json=True)
    found = json.loads(out)
    assert code == 1 and [each["check"] for each in found["findings"]] == ["nan"]
    assert found["parts"][0]["samples"] == found["parts"][0]["read"] == 50


def test_a_configuration_is_examined_part_by_part(examined, tmp_path):
    project = new_project(tmp_path / "project")
    with chdir(project):
        code, out, err = examined("tiny.yaml", folder=project)
    assert code == 0, out + err
    assert "train: 46 samples" in out and "val: 20 samples" in out


def test_packed_fields_that_a_configuration_does_not_decode_are_found(examined, tmp_path):
    rows = np.random.default_rng(0).integers(-900, 900, (64, 8)).astype(np.int16)
    group = zarr.open_group(tmp_path / "packed.zarr", mode="w")
    group.create_array("t2m", data=rows, chunks=(16, 8)).attrs["scale_factor"] = 0.01
    project = new_project(tmp_path / "project")
    text = "dataset: {path: ../packed.zarr, decode: false}\nloader: {batch_size: 4}\n"
    text += "imports: [recording]\nmodel: {_target_: recording.Recorder}\n"
    (project / "packed.yaml").write_text(text)
    code, out, err = examined("packed.yaml", folder=project)
    assert code == 1 and "field 't2m' is stored packed" in out, err


# -- examples


def example(path):
    return SimpleNamespace(**runpy.run_path(str(path)))


def test_the_data_of_the_streaming_examples_is_good(examined, tmp_path):
    example(EXAMPLES / "ddp.py").make_data(tmp_path)
    example(EXAMPLES / "latent_streaming.py").make_recording(tmp_path / "recording")
    code, out, err = examined(tmp_path / "train.zarr")
    assert code == 0, out + err
    # of the columns of a recording, the example writes two
    code, out, err = examined(tmp_path / "recording")
    assert [line.split()[0] for line in out.splitlines()[1:-1]] == ["constant"] * 2, out + err


def test_the_data_of_the_trainer_examples_is_good(examined, tmp_path):
    example(EXAMPLES / "ray_train.py").make_data(tmp_path / "ray")
    code, out, err = examined(tmp_path / "ray" / "rows.npy")
    assert code == 0 and "1,200 samples" in out, out + err
    (tmp_path / "users_module.py").write_text(
        f"import runpy\nmade = runpy.run_path({str(EXAMPLES / 'lightning_ddp.py')!r})\n"
        "parts = {'train': made['data'](600, seed=1), 'val': made['data'](501, seed=2)}\n"
    )
    code, out, err = examined("users_module:parts")
    assert code == 0 and "val: 501 samples" in out, out + err


def test_every_example_is_examined():
    covered = {"ddp.py", "latent_streaming.py", "lightning_ddp.py", "ray_train.py", "steering.py"}
    examples = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith(("_", "."))}
    assert examples == covered | {"audio"}


STEERING = """
from penstock.domains.steering import create_loader
parts = {part: create_loader("data", part, 32) for part in ("train", "val")}
"""


def test_the_data_of_the_steering_example_is_good(examined, tmp_path):
    steering = example(EXAMPLES / "steering.py")
    steering.build_steering_directory(tmp_path / "data", pairs=200, embedding_dim=8, n_neg=4)
    (tmp_path / "users_module.py").write_text(STEERING)
    code, out, err = examined("users_module:parts")
    assert code == 0, out + err


def test_the_configuration_of_the_audio_example_has_copies(examined, tmp_path):
    pytest.importorskip("soundfile")
    example(EXAMPLES / "audio" / "make_corpus.py").make_corpus(tmp_path / "data" / "musdb18mono")
    config = EXAMPLES / "audio/configs/experiment/audio/sashimi-musdb18mono.yaml"
    code, out, err = examined(config)
    assert "train: 88 samples" in out, out + err
    # half a second of two of six notes is often the same
    checks = [line.split()[0] for line in out.splitlines()[2:-1]]
    assert code == 1 and checks == ["copies", "splits"], out


# -- formats


def write_formats(folder):
    """Write the same rows in each format that `open_source` opens; return the paths."""
    import h5py
    import pyarrow
    from pyarrow import parquet

    rows = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
    zarr.open_group(folder / "x.zarr", mode="w").create_array("x", data=rows, chunks=(50, 6))
    np.save(folder / "x.npy", rows)
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(50, 6))
    table = pyarrow.table({"x": pyarrow.FixedSizeListArray.from_arrays(rows.reshape(-1), 6)})
    parquet.write_table(table, folder / "x.parquet")
    lengths = np.random.default_rng(1).integers(4, 9, 200)
    lists = pyarrow.array([rows.flat[i : i + n].tolist() for i, n in enumerate(lengths)])
    parquet.write_table(pyarrow.table({"tokens": lists}), folder / "ragged.parquet")
    lines = [json.dumps({"x": row.tolist(), "y": i % 4}) for i, row in enumerate(rows)]
    (folder / "x.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "files").mkdir()
    for number, row in enumerate(rows[:20]):
        np.save(folder / "files" / f"{number:03d}.npy", row)
    names = "x.zarr x.npy x.h5 x.parquet ragged.parquet x.jsonl files"
    return [folder / name for name in names.split()]


def write_more_formats(folder):
    """Write rows in the formats of fields; return the paths."""
    import netCDF4
    import pandas as pd
    import pyarrow
    from anndata import AnnData
    from PIL import Image
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 6)).astype(np.float32)
    zarr.create_array(folder / "shards.zarr", data=rows, chunks=(25, 6), shards=(100, 6))
    with zarr.storage.ZipStore(folder / "x.zarr.zip", mode="w") as store:
        zarr.create_array(store, data=rows, chunks=(50, 6))
    with netCDF4.Dataset(folder / "x.nc", "w") as file:
        file.createDimension("time", 200)
        file.createDimension("y", 6)
        file.createVariable("x", "f4", ("time", "y"))[:] = rows
    table = pyarrow.table({"x": rows[:, 0], "y": rows[:, 1]})
    with pyarrow.OSFile(str(folder / "x.arrow"), "wb") as sink:
        with pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    counts = csr_matrix(rng.poisson(0.4, (200, 50)).astype(np.float32))
    cells, genes = (pd.Index(list(map(str, range(n))), dtype=object) for n in counts.shape)
    made = AnnData(counts, obs=pd.DataFrame(index=cells), var=pd.DataFrame(index=genes))
    made.write_h5ad(folder / "cells.h5ad")
    (folder / "images").mkdir()
    with tarfile.open(folder / "x.tar", "w") as archive:
        for number, row in enumerate(rows[:20]):
            pixels = rng.integers(0, 255, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / f"{number:03d}.png")
            np.save(folder / "one.npy", row)
            archive.add(folder / "one.npy", f"{number:04d}.npy")
    (folder / "sounds").mkdir()
    for number in range(20):
        with wave.open(str(folder / "sounds" / f"{number:03d}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(rng.integers(-9000, 9000, 400).astype("<i2").tobytes())
    names = "shards.zarr x.zarr.zip x.nc x.arrow cells.h5ad x.tar images sounds"
    return [folder / name for name in names.split()]


@pytest.mark.parametrize("write", [write_formats, write_more_formats])
def test_every_format_can_be_examined(examined, tmp_path, write):
    for path in write(tmp_path):
        code, out, err = examined(path)
        assert code == 0 and "nothing found" in out, f"{path.name}: {out}{err}"


def test_files_without_a_header_are_examined_with_their_dtype(examined, tmp_path):
    np.random.default_rng(0).integers(0, 500, 4000).astype(np.uint16).tofile(tmp_path / "x.bin")
    (tmp_path / "users_module.py").write_text(
        "from penstock import open_source\n"
        "tokens = open_source('x.bin', dtype='uint16').windows(32, stride=32)\n"
    )
    code, out, err = examined("users_module:tokens")
    assert code == 0 and "125 samples" in out, out + err


def test_nothing_is_left_behind(examined, tmp_path):
    assert examined("users_module:make")[0] == 0
    assert not torch.utils.data.get_worker_info()
    assert {each.name for each in tmp_path.iterdir()} <= {"users_module.py", "__pycache__"}
