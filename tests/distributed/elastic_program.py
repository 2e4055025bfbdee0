"""Runs that lose ranks and go on with others, every rank's batches written down: for tests.

    python -m tests.distributed.elastic_program FOLDER SCHEDULES.json

A schedule is a list of runs, one after the other, in processes of its own: how many ranks, what
batch, which of them is killed at which step. Rank 0 writes a checkpoint every few steps, with the
one state there is; the next run continues from it.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import zarr  # noqa: F401 - before the ranks are forked

from penstock import ChunkedDataLoader, StreamLoader, create_loader
from penstock.distributed import agree
from tests.distributed.process_groups import run_ranks


def make_loader(schedule, run, folder):
    batch, workers = run["batch"], schedule["workers"]
    if schedule["loader"] == "chunked":
        numbers = torch.arange(schedule["samples"])
        return ChunkedDataLoader(numbers, batch, schedule["chunk"], num_workers=workers)
    if schedule["loader"] == "stream":
        source = folder / f"{schedule['samples']}.zarr"
        return StreamLoader(source, batch, chunk_size=schedule["chunk"], drop_last=False)
    return create_loader(
        folder / f"steering-{schedule['samples']}",
        *("train", batch, workers),
        distributed=True,
        drop_last=False,
        chunk_size=schedule["chunk"],
    )


def train(rank, world, schedule, number, folder):
    run, room = schedule["runs"][number], folder / schedule["name"]
    checkpoint = room / "checkpoint.json"
    with make_loader(schedule, run, folder) as loader:
        saved = {"state": loader.state_dict(), "step": 0}
        if checkpoint.exists():
            saved = json.loads(checkpoint.read_text())
            loader.load_state_dict(saved["state"])
        agree(loader)
        with (room / f"diary-{number}-{rank}.jsonl").open("w") as diary:
            for step, batch in enumerate(batches(loader), start=saved["step"] + 1):
                state = loader.state_dict()
                if (state["epoch"], state["position"]) > (schedule["epochs"], 0):
                    return
                tell(diary, batch, state)
                if [rank, step] == run.get("killed"):
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.all_reduce(torch.ones(1))  # everyone wrote down this step
                if rank == 0 and step % schedule["every"] == 0:
                    save(checkpoint, {"state": state, "step": step})


def batches(loader):
    while True:
        yield from loader


def tell(diary, batch, state):
    ids = (batch["relevance"] if isinstance(batch, dict) else batch).tolist()
    diary.write(json.dumps([state["epoch"], state["position"], ids]) + "\n")
    diary.flush()


def save(path, saved):
    """Beside, then renamed: a kill leaves the one before."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(saved))
    beside.replace(path)


def main(folder, schedules):
    for schedule in schedules:
        room = folder / schedule["name"]
        room.mkdir()
        ends = []
        for number, run in enumerate(schedule["runs"]):
            codes = run_ranks(run["world"], train, schedule, number, folder)
            checkpoint = room / "checkpoint.json"
            saved = json.loads(checkpoint.read_text()) if checkpoint.exists() else None
            ends.append({"codes": codes, "checkpoint": saved})
        (room / "ends.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
