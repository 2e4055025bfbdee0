"""Arguments of tuning are checked where they enter; a message's advice works."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from penstock import StreamLoader
from penstock.errors import ConfigError, PlanError
from penstock.tuning import DataLoaderConfig, Machine, tune
from penstock.tuning.trials import load_result, result_path, save_result

DATA = torch.zeros(64, 4)
NO_COUNT = [True, 0, -1, 1.5, "3", None, 2**63, float("nan"), [3]]
NO_SECONDS = [True, -1, "1", None, float("nan"), float("inf"), 1j]
NO_FLAG = [0, 1, "yes", None]
BAD = {
    "batch_size": NO_COUNT,
    "budget_seconds": NO_SECONDS,
    "step_seconds": NO_SECONDS,
    "memory_budget": [True, 0, -1, 1.5, None, "much", "-1GB", "", 2**63],
    "collate_fn": [1, "stack", True],
    "cached": NO_FLAG,
    "verbose": NO_FLAG,
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_a_wrong_argument_is_refused_by_its_name_before_anything_is_measured(name, value, capsys):
    arguments = {"batch_size": 4, "budget_seconds": 0.1, "cached": False} | {name: value}
    with pytest.raises(ValueError, match=name if name != "memory_budget" else "memory_budget|size"):
        tune(DATA, **arguments)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_not_a_dataset_of_letters_and_the_advice_works(kind, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(24, dtype=np.float32))
    with pytest.raises(PlanError, match=r"got the path .*StreamLoader\(.*x.npy', batch_size\)"):
        tune(kind(path), 2)
    with StreamLoader(kind(path), 2) as loader:
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(24))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_not_a_dataset_and_the_advice_works(kind):
    data = kind(bytes(range(64)))
    with pytest.raises(PlanError, match=r"np.frombuffer"):
        tune(data, 2)
    array = np.frombuffer(data, np.uint8).copy()
    assert tune(array, 2, budget_seconds=0, cached=False, verbose=False).batch_size == 2


class NoLength(Dataset):
    def __getitem__(self, index):
        return torch.zeros(1)


def test_a_dataset_without_a_length_is_refused():
    with pytest.raises(ConfigError, match=r"NoLength has no length .*add a __len__"):
        tune(NoLength(), 2)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"cores": cores} for cores in NO_COUNT),
        *({"accelerator": value} for value in NO_FLAG),
        *({"memory_bytes": value} for value in NO_COUNT),
    ],
    ids=repr,
)
def test_a_machine_that_cannot_be_is_refused(arguments):
    (name,) = arguments
    with pytest.raises(ConfigError, match=name):
        Machine(**({"cores": 2, "accelerator": False} | arguments))


@pytest.mark.parametrize("wrong", [True, 1.5, "3", [], -1])
@pytest.mark.parametrize("name", ["batch_size", "num_workers", "prefetch_factor", "threads"])
def test_a_remembered_number_that_is_none_is_forgotten(name, wrong, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = result_path(Machine(4, False), DATA, 8, None, 1)
    save_result(path, DataLoaderConfig(8, num_workers=3, executor="processes"))
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {name: wrong}))
    assert load_result(path) is None


def test_an_answer_for_another_batch_size_is_not_given(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tune(DATA, 8, budget_seconds=0.05, verbose=False)
    (file,) = tmp_path.rglob("*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"batch_size": 999}))
    assert tune(DATA, 8, budget_seconds=0.05, verbose=False).batch_size == 8
