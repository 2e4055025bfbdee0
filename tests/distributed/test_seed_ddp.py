"""The seed document's DDP program under real torchrun; every changed line is listed here."""

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from penstock import build_steering_directory, create_loader, set_epoch

BLOCK = Path(__file__).parents[1] / "loaders" / "steering_seed_blocks" / "07_ddp.txt"
CHANGED_LINES = {
    "from RAG_supporters.pytorch_datasets.loader import create_loader, set_epoch": (
        "from penstock import create_loader, set_epoch"
    ),
    # where the document names nccl and cuda
    'dist.init_process_group(backend="nccl")': 'dist.init_process_group(backend="gloo")',
    'device = torch.device(f"cuda:{rank}")': 'device = torch.device("cpu")',
    "model = DDP(model, device_ids=[rank])": "model = DDP(model)",
}
# what the document leaves to the reader: a model, a loss and an optimizer
BEFORE = """
import json, os, torch, warnings
warnings.filterwarnings("ignore", message="This DataLoader will create")
torch.set_num_threads(1)
diary = open(f"diary-{os.environ['RANK']}.jsonl", "w")

class MyModel(torch.nn.Module):
    made = []
    def __init__(self):
        super().__init__()
        torch.manual_seed(int(os.environ["RANK"]))  # DDP makes them alike
        self.linear = torch.nn.Linear(16, 8)
        self.made.append(self)
    def forward(self, question, steering):
        return self.linear(torch.cat([question, steering], 1))

class optimizer:
    def step():
        for p in MyModel.made[0].parameters():
            p.data.sub_(0.1 * p.grad)
            p.grad = None
        weight = MyModel.made[0].linear.weight.double().sum().item()
        diary.write(json.dumps([seen.pop(), weight]) + "\\n")

def compute_loss(output, batch):
    seen.append(batch["relevance"].tolist())
    return (output - batch["target_source_emb"]).pow(2).mean()

seen = []
"""
EPOCHS = 100


def runnable():
    lines = []
    for line in BLOCK.read_text().splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(indent + CHANGED_LINES.get(line.strip(), line.strip()))
    return BEFORE + "\n".join(lines) + "\ndiary.close()\n"


def test_only_listed_lines_are_changed():
    assert set(CHANGED_LINES) <= {line.strip() for line in BLOCK.read_text().splitlines()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seed")
    curriculum = {"curriculum": {"mode": "linear"}}
    build_steering_directory(
        folder / "output/dataset", pairs=400, embedding_dim=8, config=curriculum
    )
    (folder / "train.py").write_text(runnable())
    return folder


def launched(folder, world):
    """What each rank saw and had learned, step by step, from real torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={world}", "train.py"],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    diaries = [(folder / f"diary-{rank}.jsonl").read_text() for rank in range(world)]
    return [[json.loads(line) for line in diary.splitlines()] for diary in diaries]


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.proof)])
def test_the_ddp_program_runs_under_torchrun(folder, world):
    ranks = launched(folder, world)
    alone = create_loader(folder / "output/dataset", "train", 32 * world)
    assert [len(rank) for rank in ranks] == [EPOCHS * len(alone)] * world
    for epoch in (0, 1, EPOCHS - 1):
        set_epoch(alone, epoch)
        for step, batch in enumerate(alone, start=epoch * len(alone)):
            joined = list(chain(*(rank[step][0] for rank in ranks)))
            assert joined == batch["relevance"].tolist()
    weights = [[weight for _, weight in rank] for rank in ranks]
    assert all(other == weights[0] for other in weights) and len(set(weights[0])) >= EPOCHS
