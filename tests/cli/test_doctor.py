"""`penstock doctor` on paths, configurations and objects; on the examples, and on every format."""

import json
import runpy
import sys
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import zarr

from penstock.cli.doctor import run_doctor
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
"""


@pytest.fixture
def examined(tmp_path, capsys):
    """Run the command in this process; return exit code, output and errors."""
    (tmp_path / "users_module.py").write_text(MODULE)
    before = list(sys.path)

    def run(target, *, as_json=False, folder=tmp_path):
        with chdir(folder), pytest.raises(SystemExit) as end:
            run_doctor(str(target), as_json=as_json, debug=False)
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
        ("number", 2, "int is no dataset: name a dataset"),
        ("needs", 2, "needs arguments"),
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


def test_every_format_can_be_examined(examined, tmp_path):
    for path in write_formats(tmp_path):
        code, out, err = examined(path)
        assert code == 0 and "nothing found" in out, f"{path.name}: {out}{err}"


def test_nothing_is_left_behind(examined, tmp_path):
    assert examined("users_module:make")[0] == 0
    assert not torch.utils.data.get_worker_info()
    assert {each.name for each in tmp_path.iterdir()} <= {"users_module.py", "__pycache__"}
