"""The program of a trial: a training loop that writes down which samples it was given."""

from __future__ import annotations

import json
import os
import random
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from penstock import agree
from tests.campaigns.loaders import KINDS, Options
from tests.campaigns.processes import HANG_SECONDS
from tests.campaigns.storages import Storages

EPOCHS = 2


@dataclass(frozen=True, slots=True)
class Job:
    """A training run: the same on every start, so that what it delivers can be compared."""

    kind: str
    storage: str
    options: Options
    every: int = 1  # steps between checkpoints
    step_seconds: float = 0.006  # of one training step, on average; 0 does not wait


def train(
    storages: Storages, job: Job, room: Path, start: int = 0, rank: int = 0, world: int = 1
) -> None:
    """Train from the last checkpoint to the end, on one rank of ``world``.

    A step is written down as it is delivered, then comes the checkpoint: a file that is replaced
    as a whole. A start begins with a line that says which step it resumes after.
    """
    torch.set_num_threads(1)
    options = replace(job.options, batch=job.options.batch // world)
    if world > 1:
        options = replace(options, rank=rank, world=world)
        join_group(room / f"group-{start}", rank, world)
    kind, wait, rng = KINDS[job.kind], threading.Event().wait, random.Random(os.getpid())
    loader = kind.make(storages, job.storage, options)
    checkpoint, step = room / "checkpoint.json", 0
    diary = os.open(room / f"diary-{start}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with closing(loader):
        if checkpoint.exists():
            saved = json.loads(checkpoint.read_text())
            step = saved["step"]
            loader.load_state_dict(saved["state"])
        if world > 1:
            agree(loader)
        write_line(diary, {"resumed": step, "pid": os.getpid()})
        while loader.state_dict()["epoch"] < EPOCHS:
            for batch in loader:
                step += 1
                write_line(diary, {"step": step, "ids": kind.ids(batch)})
                if world > 1:
                    dist.all_reduce(torch.ones(1))  # every rank has written down this step
                if rank == 0 and step % job.every == 0:
                    save(checkpoint, {"step": step, "state": loader.state_dict()})
                if job.step_seconds:
                    wait(rng.expovariate(1 / job.step_seconds))  # the training step
    if world > 1:
        dist.barrier()
        os._exit(0)  # gloo's threads sometimes abort an interpreter that ends


def join_group(file: Path, rank: int, world: int) -> None:
    """A process group of gloo that meets at a file, a new one for every start."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=HANG_SECONDS - 5),
    )


def write_line(diary: int, line: dict[str, Any]) -> None:
    """Append one line in one write, so that a kill leaves it whole or leaves nothing."""
    os.write(diary, f"{json.dumps(line)}\n".encode())


def save(path: Path, saved: dict[str, Any]) -> None:
    """Write beside, then rename: a kill leaves the checkpoint before."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(saved))
    new.replace(path)


def delivered(room: Path) -> list[list[Any]]:
    """The ids of every step, of all ranks together; a start continues after its checkpoint."""
    steps: list[list[Any]] = []
    for ranks in diaries_of(room):
        diaries = [lines_of(diary) for diary in ranks]
        if not all(diaries):
            continue  # killed before every rank began
        del steps[diaries[0][0]["resumed"] :]
        for lines in zip(*(each[1:] for each in diaries), strict=False):  # a kill cuts some short
            if {line["step"] for line in lines} != {len(steps) + 1}:
                raise AssertionError(f"after {len(steps)} steps came {lines}")
            steps.append([number for line in lines for number in line["ids"]])
    return steps


def diaries_of(room: Path) -> list[list[Path]]:
    """The diaries of every start by rank; a start that was killed early may have none."""
    starts: dict[int, dict[int, Path]] = {}
    for path in room.glob("diary-*"):
        _, start, rank = path.name.split("-")
        starts.setdefault(int(start), {})[int(rank)] = path
    return [[starts[start][rank] for rank in sorted(starts[start])] for start in sorted(starts)]


def lines_of(diary: Path) -> list[dict[str, Any]]:
    """The whole lines of a rank's diary."""
    return [json.loads(line) for line in diary.read_text().splitlines()]
