"""Ray Train: a worker killed, the driver killed, another number of workers: every sample once."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from penstock import ChunkedDataLoader, ConfigError, StateError
from penstock.integrations.ray import RayTraining
from tests.distributed.test_torchrun import EPOCHS, check, newest_at_gate, read, wait_until

ROOT = Path(__file__).parents[2]
SETTINGS = {"samples": 104, "chunk": 4, "every": 2, "epochs": EPOCHS, "gates": [5, 4, 3]}


def start(folder, workers):
    with (folder / f"agent-{workers}.log").open("w") as log:
        command = [sys.executable, "-m", "tests.integrations.ray_program", folder, str(workers)]
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        )


def has_snapshot(run):
    """Whether Ray has written down its checkpoints: killed in the midst of it, it cannot go on."""
    snapshot = run / "checkpoint_manager_snapshot.json"
    return snapshot.exists() and snapshot.read_text().endswith("}")


@pytest.mark.proof
@pytest.mark.parametrize("loader", ["chunked", "stream"])
def test_a_killed_worker_a_killed_driver_and_another_number_of_workers(tmp_path, loader):
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS | {"loader": loader}))
    driver = start(tmp_path, 2)
    try:
        run = SimpleNamespace(folder=tmp_path, agents=[driver])
        at_gate = partial(wait_until, cluster=run, seconds=200)
        assert at_gate(partial(newest_at_gate, tmp_path, SETTINGS, -1)) == (0, 2)
        os.kill(read(tmp_path, 0)[1][0][0], signal.SIGKILL)  # the process of rank 1
        assert at_gate(partial(newest_at_gate, tmp_path, SETTINGS, 0)) == (1, 2)
        at_gate(partial(has_snapshot, tmp_path / "run"))
        driver.kill()
        driver.wait()
        driver = run.agents[0] = start(tmp_path, 3)
        assert at_gate(partial(newest_at_gate, tmp_path, SETTINGS, 1)) == (2, 3)
        (tmp_path / "go-on").touch()
        assert driver.wait(200) == 0
    finally:
        driver.kill()
        driver.wait()
    check(tmp_path, SETTINGS, most_lost=5)  # Ray may not have received the last reports
    log = (tmp_path / "agent-3.log").read_text()
    assert "'penstock/waiting_share': 0." in log


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
