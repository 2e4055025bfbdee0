"""The examples run on several ranks, stop, go on with other ranks, and end as undisturbed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
# rank 1 is killed once, right after the checkpoint of step 40
KILLED = """
import os, signal, sys
sys.path.insert(0, {examples!r})
import ddp
step = ddp.torch.optim.SGD.step
steps = 0

def stepping(*args, **kwargs):
    global steps
    steps += 1
    if (steps, os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == (45, "1", "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*args, **kwargs)

ddp.torch.optim.SGD.step = stepping
ddp.main()
"""


def run(command, **env):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def torchrun(ranks, *command):
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *command]


def loss_of(said):
    loss, samples = re.search(r"val loss (\S+) of (\d+) samples, each once", said).groups()
    assert samples == "501"
    return float(loss)


def forked(done):
    """The output of ranks that were forked, which saves them the imports."""
    assert done.code == 0, done.err[-3000:]
    return done.out


def ends_alike(commands, folder, said):
    """The run in ``folder``, stopped at step 50, continues on three ranks and ends as one alone."""
    assert "stopped after step 50" in said
    program = EXAMPLES / "ddp.py"
    said = forked(commands.ranks(3, folder, program, "--dir", folder / "run"))
    assert "resumed at step 50 on 3 ranks" in said
    straight = forked(commands.ranks(1, folder, program, "--dir", folder / "straight"))
    assert loss_of(said) == pytest.approx(loss_of(straight), rel=1e-3)
    saved = [torch.load(folder / name / "checkpoint.pt") for name in ("straight", "run")]
    assert saved[0]["loader"] == saved[1]["loader"] and saved[0]["step"] == saved[1]["step"]
    for name, weight in saved[0]["model"].items():
        assert torch.allclose(weight, saved[1]["model"][name], atol=1e-4)


def test_stopped_and_continued_on_three_ranks_it_ends_as_undisturbed(commands, tmp_path):
    command = [EXAMPLES / "ddp.py", "--dir", tmp_path / "run", "--stop-at", 50]
    ends_alike(commands, tmp_path, forked(commands.ranks(2, tmp_path, *command)))


@pytest.mark.proof
def test_a_killed_rank_is_restarted_by_torchrun_and_nothing_is_lost(commands, tmp_path):
    (tmp_path / "killed.py").write_text(KILLED.format(examples=str(EXAMPLES)))
    command = ["--max-restarts=1", tmp_path / "killed.py", "--dir", tmp_path / "run"]
    # else the ranks of the second attempt find the addresses of the first (pytorch issue 135712)
    said = run(torchrun(2, *command, "--stop-at", 50), TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert "resumed at step 40 on 2 ranks" in said
    ends_alike(commands, tmp_path, said)


def scores(said):
    return [float(loss) for loss in re.findall(r"val loss (\S+) of 501 samples", said)]


def test_lightning_trains_in_chunks_on_two_ranks(commands, tmp_path):
    example, options = EXAMPLES / "lightning_ddp.py", ["--dir", tmp_path / "run", "--chunks", 2]
    first, second = scores(forked(commands.ranks(2, tmp_path, example, *options)))
    assert second < first
    assert (tmp_path / "run" / "last.ckpt").exists()


@pytest.mark.proof
def test_lightning_on_two_ranks_goes_on_alone_as_if_it_had_always_been(tmp_path):
    example = EXAMPLES / "lightning_ddp.py"
    alone = ["--devices", 1, "--chunks", 4]
    straight = scores(run([example, "--dir", tmp_path / "straight", *alone]))
    two = scores(run(torchrun(2, example, "--dir", tmp_path / "run", "--chunks", 2)))
    rest = scores(run([example, "--dir", tmp_path / "run", *alone]))
    assert len(straight) == 4 and len(two) == 2
    assert two + rest == pytest.approx(straight, rel=1e-3)
    assert straight[-1] < straight[0] / 2
