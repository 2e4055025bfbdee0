"""The commands of docs/scaling_out.md, run as they are: together they end as one process does."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
STEPS = re.findall(
    r"^## (\d)\. .*?^```sh\n(.*?)^```", (ROOT / "docs/scaling_out.md").read_text(), re.M | re.S
)
MEMBERS = {"4": 2, "5": 2}  # machines that run the same command


def environment_of(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = {
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return {
        **os.environ,
        **paths,
        "OMP_NUM_THREADS": "1",
        "RUN": str(folder),
        "HEAD": f"127.0.0.1:{port}",
    }


def run(command, folder, members=1):
    """What the members say, of which each is a shell of its own."""
    environment = environment_of(folder)
    shells = [
        subprocess.Popen(
            ["bash", "-ec", command], cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for _ in range(members)
    ]  # fmt: skip
    said = [shell.communicate(timeout=600)[0] for shell in shells]
    assert [shell.returncode for shell in shells] == [0] * members, "\n".join(said)[-4000:]
    return "\n".join(said)


@pytest.mark.proof
def test_six_steps_from_one_process_to_a_cluster_end_as_one_process(tmp_path):
    assert [number for number, _ in STEPS] == list("123456")
    said = {
        number: run(command, tmp_path / "run", MEMBERS.get(number, 1)) for number, command in STEPS
    }
    assert "stopped after step 10" in said["1"]
    for number, resumed in (("2", "10 on 2"), ("3", "20 on 3"), ("4", "30 on 2"), ("5", "40 on 2")):
        assert f"resumed at step {resumed} ranks" in said[number]
    assert "each once" in said["5"]
    assert "resumed at step 10 on 2 workers" in said["6"]
    assert "step 30 on 2 workers" in said["6"] and "step 60 on 1 workers" in said["6"]
    command = "torchrun --nproc-per-node=1 examples/ddp.py --dir $RUN"
    run(command, tmp_path / "straight")
    ended, straight = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
        for name in ("run", "straight")
    )
    assert ended["loader"] == straight["loader"] and ended["step"] == straight["step"]
    for name, weight in straight["model"].items():
        assert torch.allclose(weight, ended["model"][name], atol=1e-4)
