"""A plain loop whose ranks come and go, with what each of them trained written down: for tests.

    torchrun --nnodes=1:4 ... torchrun_program.py FOLDER

Every start of the ranks is an attempt with a folder of its own. It begins at the last checkpoint,
which is written every few steps.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

from penstock import ChunkedDataLoader, ReplayLoader, StreamLoader
from penstock.distributed import agree
from penstock.loaders import Loader


def chunked(settings):
    numbers = torch.arange(settings["samples"])
    return ChunkedDataLoader(numbers, 5, settings["chunk"], shuffle=True, seed=3)


def stream(settings):
    blocks = {"block_samples": 4, "window_blocks": 3, "lanes": 6, "drop_last": False}
    numbers = torch.arange(settings["samples"]).numpy()
    return StreamLoader(numbers, 5, chunk_size=settings["chunk"], seed=3, **blocks)


def replay(settings):
    """A dataset without an index, whose own state is of no use to other ranks."""
    return ReplayLoader(Shared(range(settings["samples"])), batch_size=5)


class Shared(IterableDataset):
    """Its ranks take turns, in the order of the epoch."""

    sharded, epoch = True, 0

    def __init__(self, numbers):
        self.numbers = numbers

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = random.Random(self.epoch).sample(self.numbers, len(self.numbers))
        return iter(order[dist.get_rank() :: dist.get_world_size()])


LOADERS = {"chunked": chunked, "stream": stream, "replay": replay}


def place_of(loader):
    state = loader.state_dict()
    return [state["epoch"], state.get("position", state.get("batches"))]


def train(folder, resume, save):
    """Train to the end: ``resume(loader)`` finds the last checkpoint, ``save(loader)`` adds one."""
    settings = json.loads((folder / "settings.json").read_text())
    loader = LOADERS[settings.get("loader", "chunked")](settings)
    resume(loader)
    if isinstance(loader, Loader):
        agree(loader)
    attempt = [len(list(folder.glob("attempt-*")))]
    if dist.get_rank() == 0:
        (folder / f"attempt-{attempt[0]}").mkdir()
    dist.broadcast_object_list(attempt)
    step, room = 0, folder / f"attempt-{attempt[0]}"
    gate = settings["gates"][attempt[0] % len(settings["gates"])]
    with (room / f"rank-{dist.get_rank()}.jsonl").open("w") as diary:
        diary.write(json.dumps([os.getpid(), dist.get_world_size(), *place_of(loader)]) + "\n")
        while loader.state_dict()["epoch"] < settings["epochs"]:
            for batch in loader:
                step += 1
                diary.write(json.dumps([*place_of(loader), batch.tolist()]) + "\n")
                diary.flush()
                dist.all_reduce(torch.ones(1))  # every rank wrote down this step
                if step % settings["every"] == 0:
                    save(loader)
                if step == gate:
                    wait_for_event(folder, attempt[0])


def wait_for_event(folder, attempt):
    """Go on when the test has done what it does in this attempt."""
    while not any((folder / name).exists() for name in (f"go-on-{attempt}", "go-on")):
        time.sleep(0.02)


def main(folder):
    checkpoint = folder / "checkpoint.json"

    def resume(loader):
        if checkpoint.exists():
            loader.load_state_dict(json.loads(checkpoint.read_text()))

    def save(loader):
        if dist.get_rank() == 0:
            beside = checkpoint.with_suffix(".new")
            beside.write_text(json.dumps(loader.state_dict()))
            beside.replace(checkpoint)

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train(folder, resume, save)
    dist.barrier()
    os._exit(0)  # gloo's threads sometimes abort an interpreter that ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
