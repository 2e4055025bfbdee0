"""Every rank of every world writes down what its loaders deliver: started by tests.

    python -m tests.distributed.ranks_program FOLDER

The folder has the data: ``numbers.zarr``, ``other.zarr``, ``steering``, ``steering-other``.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import zarr  # noqa: F401 - before the ranks are forked
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader, ReplacingDataset, StreamLoader, create_loader
from penstock.distributed import agreed, topology_from_mesh
from penstock.errors import SourceError
from penstock.testing import WatchedSource
from tests.distributed.process_groups import run_ranks

GLOBAL_BATCH, SAMPLES, EPOCHS, BAD = 12, 101, 2, (7, 64)


class Flawed(Dataset):
    """Two samples of it cannot be read."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if index in BAD:
            raise OSError(f"sample {index} is damaged")
        return torch.tensor(index)


def tell(batch):
    """Which samples they are; of steering, by their relevance, and with their variants."""
    if isinstance(batch, dict):
        return [list(pair) for pair in zip(*(batch[k].tolist() for k in KEYS), strict=True)]
    return batch.tolist()


KEYS = ("relevance", "steering_variant")


def delivered(loader, epochs=EPOCHS):
    """All batches of all epochs, in step with the other ranks."""
    found = []
    with loader:
        for _ in range(epochs):
            found.append([])
            for batch in loader:
                here = torch.ones(1)
                dist.all_reduce(here)  # hangs, or is wrong, where a rank has another step
                assert here == dist.get_world_size()
                found[-1].append(tell(batch))
    return found


def evaluated(loader):
    """Samples, an integer score and a loss, over all ranks."""
    sums, loss, steps = torch.zeros(2, dtype=torch.int64), torch.zeros(1), 0
    with loader:
        for batch in loader:
            values = batch["relevance"] if isinstance(batch, dict) else batch / SAMPLES
            sums += torch.tensor([len(values), int((values > 0.5).sum())])
            loss += (values.float() - 0.3).pow(2).sum()
            steps += 1
    dist.all_reduce(sums)
    dist.all_reduce(loss)
    return {"sums": sums.tolist(), "loss": loss.item(), "steps": steps}


def training(folder, batch, workers, drop_last):
    options = {"drop_last": drop_last}
    yield (
        "chunked",
        ChunkedDataLoader(
            torch.arange(SAMPLES), batch, shuffle=True, num_workers=workers, **options
        ),
    )
    yield (
        "steering",
        create_loader(
            folder / "steering", "train", batch, num_workers=workers, distributed=True, **options
        ),
    )
    if not workers:  # it reads by threads
        zarr_options = {"lanes": 4, "window_blocks": 2}
        yield "stream", StreamLoader(folder / "numbers.zarr", batch, **zarr_options, **options)


def evaluation(folder, batch, workers):
    numbers = torch.arange(SAMPLES)
    yield "chunked", ChunkedDataLoader(numbers, batch, evaluation=True, num_workers=workers)
    yield (
        "steering",
        create_loader(folder / "steering", "val", batch, num_workers=workers, distributed=True),
    )
    if not workers:
        yield "stream", StreamLoader(folder / "numbers.zarr", batch, evaluation=True)


def mixed(folder, odd):
    """Loaders that differ on one rank, each in one thing."""
    seed, batch = (7, 5) if odd else (42, 4)
    steering = folder / ("steering-other" if odd else "steering")
    numbers = folder / ("other.zarr" if odd else "numbers.zarr")
    nowhere = folder / ("nowhere" if odd else "steering")
    shared = {"split": "train", "distributed": True}
    return {
        "seed": lambda: create_loader(folder / "steering", batch_size=4, seed=seed, **shared),
        "batch size": lambda: create_loader(folder / "steering", batch_size=batch, **shared),
        "directory": lambda: create_loader(steering, batch_size=4, **shared),
        "missing": lambda: create_loader(nowhere, batch_size=4, **shared),
        "stream": lambda: agreed(lambda: StreamLoader(numbers, 4)),
        "chunk": lambda: agreed(lambda: ChunkedDataLoader(torch.arange(40), 4, chunk_size=batch)),
    }


def refusals(folder, odd):
    found = {}
    for name, make in mixed(folder, odd).items():
        begin = time.monotonic()
        try:
            make()
            found[name] = ["accepted", 0.0]
        except (ValueError, OSError) as error:
            found[name] = [str(error), time.monotonic() - begin]
    return found


def skipping(folder, world, workers):
    """Bad samples: replaced, written down, and no rank waits for another."""
    quarantine = folder / f"quarantine-{world}-{workers}.jsonl"
    dataset = ReplacingDataset(Flawed(), on_error="replace", quarantine=quarantine)
    batch = GLOBAL_BATCH // world
    return delivered(ChunkedDataLoader(dataset, batch, shuffle=True, num_workers=workers))


def damaged(start, stop):
    for bad in BAD:
        if start <= bad < stop:
            raise SourceError(f"sample {bad} is damaged")


def skipping_blocks(folder, world):
    """Blocks that cannot be read: replaced, written down, and no rank waits for another."""
    source = WatchedSource(np.arange(SAMPLES), damaged, block_samples=4)
    options = {"window_blocks": 3, "lanes": GLOBAL_BATCH, "drop_last": False, "seed": 7}
    options |= {"on_error": "replace", "quarantine": folder / f"quarantine-{world}-stream.jsonl"}
    return delivered(StreamLoader(source, GLOBAL_BATCH // world, **options))


def in_a_mesh():
    """What a rank of a 2 x 2 mesh gets, data parallel over one dimension of it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found = {}
    for name, dimensions in (("dp", None), ("dp x tp", ("dp", "tp"))):
        place = topology_from_mesh(mesh, dimensions)
        ranks = {"rank": place.rank, "world_size": place.world}
        loader = agreed(lambda: ChunkedDataLoader(torch.arange(40), 4, shuffle=True, **ranks))  # noqa: B023
        found[name] = [place.rank, place.world, delivered(loader, 1)]
    return found


def rank_of_world(rank, world, folder):
    batch = GLOBAL_BATCH // world
    found = {"train": {}, "val": {}, "skip": {}}
    for workers in (0, 2):
        for drop_last in (False, True):
            for name, loader in training(folder, batch, workers, drop_last):
                case = f"{name}, {workers} workers, drop_last={drop_last}"
                assert loader.samples_at(0, epoch=0).size == batch
                found["train"][case] = delivered(loader)
        for name, loader in evaluation(folder, batch, workers):
            found["val"][f"{name}, {workers} workers"] = evaluated(loader)
        found["skip"][f"{workers} workers"] = skipping(folder, world, workers)
    found["skip"]["stream"] = skipping_blocks(folder, world)
    if world > 1:
        found["refused"] = refusals(folder, odd=rank == world - 1)
    if world == 4:
        found["mesh"] = in_a_mesh()
    (folder / f"{world}-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    for size in (1, 2, 3, 4):
        begin = time.monotonic()
        codes = run_ranks(size, rank_of_world, Path(sys.argv[1]))
        print(f"world {size}: {time.monotonic() - begin:.1f} s, exit codes {codes}", flush=True)
