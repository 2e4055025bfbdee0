"""A DDP program on two ranks: ours, and that of the seed document where it is available."""

import json
import os
import subprocess
import sys
from itertools import chain

import pytest

from penstock import build_steering_directory, create_loader, set_epoch
from tests.seeds import seed_blocks

CHANGES = {
    "RAG_supporters.pytorch_datasets.loader": "penstock",
    'backend="nccl"': 'backend="gloo"',
    'f"cuda:{rank}"': '"cpu"',
    "DDP(model, device_ids=[rank])": "DDP(model)",
    "range(100)": "range(EPOCHS)",
}
OURS = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from penstock import create_loader, set_epoch

dist.init_process_group("gloo")
ddp = DistributedDataParallel(MyModel())
loader = create_loader("output/dataset", "train", 32, num_workers=1, distributed=True)
for epoch in range(EPOCHS):
    set_epoch(loader, epoch)
    for batch in loader:
        compute_loss(ddp(batch["question_emb"], batch["steering"]), batch).backward()
        optimizer.step()
loader.close()
dist.destroy_process_group()
"""
EPOCHS = 5
# what the programs use: a model, a loss and an optimizer
BEFORE = (
    f"""
EPOCHS = {EPOCHS}
"""
    + """
import json, multiprocessing, os, torch, warnings
multiprocessing.set_start_method("fork")  # other methods need a guarded program
warnings.filterwarnings("ignore", message="This DataLoader will create")
torch.set_num_threads(1)
diary = open(f"diary-{os.environ['RANK']}.jsonl", "w")

kept, init = [], torch.nn.parallel.DistributedDataParallel.__init__
def keep(self, *args, **options):  # freed after its process group, it can wait for gloo for ever
    kept.append(self)
    init(self, *args, **options)
torch.nn.parallel.DistributedDataParallel.__init__ = keep

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
)


def program_of(kind):
    block = OURS if kind == "ours" else seed_blocks("004", CHANGES)[7]
    return f"{BEFORE}\n{block}\ndiary.close()\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seed")
    curriculum = {"curriculum": {"mode": "linear"}}
    build_steering_directory(
        folder / "output/dataset", pairs=400, embedding_dim=8, config=curriculum
    )
    return folder


def torchrun(folder, world):
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


def diaries_of(folder, world):
    """What each rank saw and had learned, step by step."""
    diaries = [(folder / f"diary-{rank}.jsonl").read_text() for rank in range(world)]
    return [[json.loads(line) for line in diary.splitlines()] for diary in diaries]


@pytest.mark.parametrize("kind", ["ours", "of the document"])
def test_the_ddp_program_runs_on_two_ranks(commands, folder, kind):
    (folder / "train.py").write_text(program_of(kind))
    done = commands.ranks(2, folder, folder / "train.py", OMP_NUM_THREADS="1")
    assert done.code == 0, done.err[-3000:]
    check(folder, 2)


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["ours", "of the document"])
@pytest.mark.parametrize("world", [2, 4])
def test_the_ddp_program_runs_under_torchrun(folder, world, kind):
    (folder / "train.py").write_text(program_of(kind))
    torchrun(folder, world)
    check(folder, world)


def check(folder, world):
    ranks = diaries_of(folder, world)
    alone = create_loader(folder / "output/dataset", "train", 32 * world)
    assert [len(rank) for rank in ranks] == [EPOCHS * len(alone)] * world
    for epoch in (0, 1, EPOCHS - 1):
        set_epoch(alone, epoch)
        for step, batch in enumerate(alone, start=epoch * len(alone)):
            joined = list(chain(*(rank[step][0] for rank in ranks)))
            assert joined == batch["relevance"].tolist()
    weights = [[weight for _, weight in rank] for rank in ranks]
    assert all(other == weights[0] for other in weights) and len(set(weights[0])) >= EPOCHS
