"""Every composed order on one rank of torchrun, step by step in turn; a rank kills itself.

torchrun ... -m tests.distributed.orders_program FOLDER KILLS
"""

import json
import os
import signal
import sys
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist

from penstock import ChunkedDataLoader, agree
from penstock.loaders.chunk_schedule import TimedChunks
from penstock.loaders.chunk_settings import ValidationInterval
from tests.campaigns.loaders import KINDS, Options
from tests.campaigns.orders import ORDERS
from tests.campaigns.storages import Storages
from tests.campaigns.training import join_group, save, write_line

EPOCHS, GLOBAL_BATCH, EVERY = 2, 24, 3  # steps between two checkpoints
TIMED = "a duration"


def make(name, folder, rank, world):
    if name == TIMED:  # by the clock of rank 0: those of others go faster
        timed = TimedChunks(70, clock=count(step=1 + rank).__next__)
        chunks = timed if dist.is_initialized() else 7
        ranks = {"rank": rank, "world_size": world, "shuffle": True}
        return ChunkedDataLoader(torch.arange(2000), 8, chunks, **ranks)
    options = Options(3, GLOBAL_BATCH // world, 7, rank, world)
    return KINDS[name].make(Storages(folder), "memory", options)


def steps_of(name, loader):
    """The steps to come: what they deliver, and the size of their chunk."""
    ids = torch.Tensor.tolist if name == TIMED else KINDS[name].ids
    while loader.state_dict()["epoch"] < EPOCHS:
        for batch in loader:
            yield {"ids": ids(batch), "chunk": len(loader)}


def decisions(rank):
    """Validations by a loss that only rank 0 sees change."""
    from penstock.integrations.lightning.reporting import ValidationTiming  # imports Lightning

    class Strategy:
        def broadcast(self, value):
            found = [value]
            dist.broadcast_object_list(found)
            return found[0]

    class Trainer:
        strategy = Strategy()

    timing, found = ValidationTiming(ValidationInterval(1, 9, loss_change=0.5)), []
    for chunk in range(12):
        timing.add(torch.tensor(1.0 + 9 * (chunk // 3 % 2) * (rank == 0)))
        timing.decide(Trainer())
        found.append(timing.due)
    return found


def main(folder, kills):
    rank, world, start = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    )
    torch.set_num_threads(1)
    join_group(folder / f"group-{start}", rank, world)
    loaders = {name: make(name, folder, rank, world) for name in [*ORDERS, TIMED]}
    checkpoint, step = folder / "checkpoint.json", 0
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        step = saved["step"]
        for name, loader in loaders.items():
            loader.load_state_dict(saved["states"][name])
    for loader in loaders.values():
        agree(loader)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    diaries = {name: os.open(folder / f"{name}-{start}-{rank}", flags) for name in loaders}
    running = {name: steps_of(name, loader) for name, loader in loaders.items()}
    for diary in diaries.values():
        write_line(diary, {"resumed": step})
    while running:
        step += 1
        for name, steps in list(running.items()):
            found = next(steps, None)
            if found is None:
                del running[name]
            else:
                write_line(diaries[name], {"step": step, **found})
            if start < len(kills) and [step, rank, name] == kills[start]:
                os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))  # every rank has written down this step
        if rank == 0 and step % EVERY == 0:
            states = {name: loader.state_dict() for name, loader in loaders.items()}
            save(checkpoint, {"step": step, "states": states})
    if len(kills) > 1:  # it takes seconds to import Lightning
        (folder / f"decisions-{rank}.json").write_text(json.dumps(decisions(rank)))
    dist.barrier()
    os._exit(0)  # gloo's threads sometimes abort an interpreter that ends


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
