"""A plain loop on accelerate that records what the weights have seen, and resumes: for tests.

torchrun --nproc_per_node=2 accelerate_program.py JOBS.json
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator

from penstock.loaders import ChunkedDataLoader, StreamLoader


class Record:
    """What the weights have behind them; saved beside them."""

    def __init__(self):
        self.events, self.pending, self.chunks, self.due = [], [], 0, False

    def state_dict(self):
        return {"events": list(self.events), "chunks": self.chunks, "due": self.due}

    def load_state_dict(self, state):
        self.events, self.chunks, self.due = list(state["events"]), state["chunks"], state["due"]


def gathered(accelerator, ids):
    """The samples of all ranks, whose last batches may differ in size."""
    return accelerator.gather_for_metrics(ids.tolist(), use_gather_object=True)


def make_loader(job):
    data = torch.arange(job["samples"])
    if job.get("kind") == "stream":
        blocks = {"block_samples": 4, "window_blocks": 3, "lanes": 2}
        options = {"chunk_size": job["chunk"], "drop_last": False, **blocks}
        return StreamLoader(data.numpy(), job["batch"], **options)
    return ChunkedDataLoader(data, job["batch"], job["chunk"], num_workers=job.get("workers", 0))


def fit(job, load_from=None, save_to=None):
    """One run; what it did."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=job["accumulate"])
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    given = make_loader(job)
    val = ChunkedDataLoader(torch.arange(1000, 1005), 2, evaluation=True)
    model, optimizer, train, val = accelerator.prepare(model, optimizer, given, val)
    kept, record, saved = train is given, Record(), 0
    accelerator.register_for_checkpointing(record)
    if load_from is not None:
        accelerator.load_state(load_from)

    def save(point):
        nonlocal saved
        if save_to and accelerator.sync_gradients:  # else gradients would be lost
            accelerator.save_state(str(Path(save_to) / f"{saved:03d}-{point}"))
            saved += 1

    while record.chunks < job["chunks"]:
        for ids in () if record.due else train:
            ids = ids.clone()  # a batch of a stream is a view of memory that is used again
            record.pending.append(["train", gathered(accelerator, ids)])
            with accelerator.accumulate(model):
                loss = (model(ids.double()[:, None] / 100) - 1).pow(2).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                record.events, record.pending = record.events + record.pending, []
                record.due = train.remaining == len(train)
                save("batch")
        scored = [sample for ids in val for sample in gathered(accelerator, ids)]
        (record.pending or record.events).append(["validate", record.chunks, scored])
        record.chunks, record.due = record.chunks + 1, False
        save("validated")
    given.close()
    return {
        "events": record.events,
        "weights": [weight.tolist() for weight in accelerator.unwrap_model(model).parameters()],
        "place": [given.state_dict()[name] for name in ("epoch", "position")],
        "kept": kept,
        "world": accelerator.num_processes,
    }


def run(job):
    """The results of a job: one, or one of each checkpoint it resumes."""
    if "resume_from" not in job:
        return {"fresh": fit(job, save_to=job.get("save_to"))}
    paths = sorted(Path(job["resume_from"]).iterdir())[:: job.get("every", 1)]
    return {path.name: fit(job, load_from=str(path)) for path in paths}


def main(jobs_file):
    results = [run(job) for job in json.loads(jobs_file.read_text())]
    if not dist.is_initialized() or dist.get_rank() == 0:
        jobs_file.with_suffix(".results").write_text(json.dumps(results))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        os._exit(0)  # gloo's threads sometimes abort an interpreter that ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
