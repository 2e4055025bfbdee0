"""Ray Train: a worker killed, the driver killed, another number of workers: every sample once."""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pyarrow.fs import LocalFileSystem
from ray.train import RunConfig

from penstock import ChunkedDataLoader, ConfigError, StateError
from penstock.integrations.ray import FILE, SNAPSHOT, RayTraining, _checkpoints, recoverable
from tests.distributed.test_torchrun import EPOCHS, check, newest_at_gate, read, wait_until

ROOT = Path(__file__).parents[2]
SETTINGS = {"samples": 104, "chunk": 4, "every": 2, "epochs": EPOCHS, "gates": [5, 4, 3]}


def start(folder, workers):
    with (folder / f"agent-{workers}.log").open("a") as log:
        command = [sys.executable, "-m", "tests.integrations.ray_program", folder, str(workers)]
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        )


def damage(snapshot):
    """As a driver leaves it that is killed while it writes its list of checkpoints."""
    text = snapshot.read_text() if snapshot.exists() else '{"checkpoint_results": []}'
    snapshot.write_text(text[: len(text) // 2])


@pytest.mark.proof
@pytest.mark.parametrize(("loader", "workers"), [("chunked", 3), ("stream", 3), ("replay", 2)])
def test_a_killed_worker_a_killed_driver_and_another_number_of_workers(tmp_path, loader, workers):
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS | {"loader": loader}))
    driver = start(tmp_path, 2)
    try:
        run = SimpleNamespace(folder=tmp_path, agents=[driver])
        at_gate = partial(wait_until, cluster=run, seconds=200)
        assert at_gate(partial(newest_at_gate, tmp_path, SETTINGS, -1)) == (0, 2)
        os.kill(read(tmp_path, 0)[1][0][0], signal.SIGKILL)  # the process of rank 1
        assert at_gate(partial(newest_at_gate, tmp_path, SETTINGS, 0)) == (1, 2)
        driver.kill()
        driver.wait()
        damage(tmp_path / "run" / SNAPSHOT)
        driver = run.agents[0] = start(tmp_path, workers)
        assert at_gate(partial(newest_at_gate, tmp_path, SETTINGS, 1)) == (2, workers)
        (tmp_path / "go-on").touch()
        assert driver.wait(200) == 0
    finally:
        driver.kill()
        driver.wait()
    # a report that Ray did not receive costs nothing: its checkpoint is in the storage
    check(tmp_path, SETTINGS, most_lost=SETTINGS["every"])
    said = (tmp_path / f"agent-{workers}.log").read_text()
    assert 0 <= float(re.search(r"'penstock/waiting_share': ([^,}]+)", said)[1]) <= 1


class Checkpoint:
    path = "somewhere"

    def __init__(self, folder):
        self.as_directory = partial(Directory, folder)


class Directory:
    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        return str(self.folder)

    def __exit__(self, *error):
        pass


def test_a_checkpoint_without_the_position_is_refused(tmp_path):
    training = RayTraining(ChunkedDataLoader(torch.arange(8), 2))
    with pytest.raises(StateError, match=r"has no penstock\.json, so the position"):
        training.resume(Checkpoint(tmp_path)).__enter__()


@pytest.mark.parametrize("loader", [[1], ChunkedDataLoader(torch.arange(8), 2, sampler=range(8))])
def test_a_loader_without_a_position_is_refused_at_start(loader):
    with pytest.raises((ConfigError, StateError), match=r"no position to save|has no state"):
        RayTraining(loader)


def save(folder, number, **files):
    """A checkpoint as it is in the storage of a run."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    sizes = {name: len(text) for name, text in files.items()}
    (folder / FILE).write_text(json.dumps({"loader": {}, "number": number, "files": sizes}))


def test_the_last_checkpoint_is_the_last_complete_one(tmp_path):
    run = tmp_path / "run"
    for name, number in (("a", 3), ("b", 2), ("cut", 4), ("lost", 5), ("half", 6)):
        save(run / name, number, model="weights", optimizer="")
    (run / "cut" / "model").write_text("wei")
    (run / "lost" / "model").unlink()
    (run / "half" / FILE).write_text('{"loader": {')
    (run / "plain").mkdir()
    assert sorted(_checkpoints(LocalFileSystem(), str(run))) == [
        (2, str(run / "b")),
        (3, str(run / "a")),
    ]
    assert list(_checkpoints(LocalFileSystem(), str(tmp_path / "new"))) == []


def test_a_list_of_checkpoints_that_ray_cannot_read_is_renamed(tmp_path, caplog):
    config = RunConfig(name="run", storage_path=str(tmp_path))
    snapshot = tmp_path / "run" / SNAPSHOT
    assert recoverable(config) is config and recoverable(RunConfig())
    snapshot.parent.mkdir()
    snapshot.write_text("{}")
    recoverable(config)
    assert snapshot.exists() and not caplog.text
    snapshot.write_text('{"ray_version":')
    recoverable(RunConfig(name="run", storage_path=snapshot.parents[1].as_uri()))
    assert not snapshot.exists() and "was only partly written" in caplog.text
    with pytest.raises(ConfigError, match=r"must be a ray\.train\.RunConfig, got 3"):
        recoverable(3)
