"""Everything that takes ``seed=None``, on two ranks: started by tests.

    python -m tests.distributed.seeds_program FOLDER

The folder has the data: ``numbers.npy`` and ``steering``. Each case is made before the process
group exists and after, and once more with a batch delivered before.
"""

import json
import sys
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from penstock import (
    ChunkedDataLoader,
    ChunkedSampler,
    DataLoaderConfig,
    DataLoaderFactory,
    RandomChunkLoader,
    StreamLoader,
    create_loader,
)
from penstock.datamodules import UniversalDataModule
from penstock.datamodules.sequence import SequenceDataset
from penstock.integrations.lightning.loaders import as_training_loader, as_validation_loader
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.loaders.partition import validation_loader
from penstock.sources import open_source
from penstock.training.build.data import PartLoaders
from tests.distributed.process_groups import run_ranks

SAMPLES = 120
DRAWN = {"seed": None}
CHUNKS = ChunkSettings(train_chunk_size=3, val_chunk_size=2, seed=None)


class Counting(IterableDataset):
    sharded = True  # both ranks read all of it

    def __iter__(self):
        return iter(torch.arange(SAMPLES))


class Halved(SequenceDataset):
    """Split by a drawn seed, trained in an order of another."""

    _name_ = "seeds-program"
    init_defaults = {"seed": None}  # noqa: RUF012

    def setup(self):
        self.dataset_train = [(torch.tensor([i]), i) for i in range(SAMPLES)]
        self.split_train_val(0.5)


def halved():
    data = Halved(chunk_seed=None, train_chunk_size=3, val_chunk_size=2, batch_size=4)
    data.setup()
    return data


class Recording:
    """A `RandomChunkLoader`, iterated like the others."""

    def __init__(self):
        self.loader = RandomChunkLoader(lambda a, b: torch.arange(a, b).numpy(), SAMPLES, 10)

    def __iter__(self):
        self.loader.start_epoch(2)  # of 4 chunks, on 2 ranks
        for _ in range(2):
            yield self.loader.get_next_chunk()[0].clone()


def cases(folder):
    """Name -> what makes it; each gives a loader, or loaders by side."""
    numbers, tensor = folder / "numbers.npy", torch.arange(SAMPLES)
    module = partial(UniversalDataModule, batch_size=4, num_workers=0, **DRAWN)
    stock = partial(DataLoader, tensor, 4)
    sides = partial(PartLoaders, {"batch_size": 4}, CHUNKS)
    return {
        "chunked": lambda: ChunkedDataLoader(tensor, 4, shuffle=True, **DRAWN),
        "chunked, chunk_size": lambda: ChunkedDataLoader(tensor, 4, 5, **DRAWN),
        "stream": lambda: StreamLoader(numbers, 4, **DRAWN),
        "sampler": lambda: DataLoader(tensor, 4, sampler=ChunkedSampler(SAMPLES, 40, **DRAWN)),
        "recording": Recording,
        "factory": lambda: DataLoaderFactory.create_training_loader(
            tensor, 4, num_workers=0, **DRAWN
        ),
        "config": lambda: DataLoaderFactory.create_dataloader(
            tensor, DataLoaderConfig(batch_size=4, num_workers=0, **DRAWN)
        ),
        "steering": lambda: create_loader(folder / "steering", "train", 4, **DRAWN),
        "validation": lambda: validation_loader(tensor, 4, 3, **DRAWN),
        "validation, cycle": lambda: validation_loader(tensor, 4, 3, cycle=True, **DRAWN),
        "module": lambda: module(tensor),
        "module, source": lambda: module(numbers),
        "module, iterable": lambda: module(Counting(), val_split=0),
        "sequence": halved,
        "replaced": lambda: as_training_loader(stock(), CHUNKS, name="train"),
        "replaced, validation": lambda: as_validation_loader(stock(), CHUNKS, name="val"),
        "yaml": lambda: {"train": sides().training(tensor), "val": sides().validation(tensor)},
        "yaml, source": lambda: {
            "train": sides().training(open_source(numbers)),
            "val": sides().validation(open_source(numbers)),
        },
    }


def sides_of(made):
    if isinstance(made, dict):
        return made
    if hasattr(made, "train_dataloader"):
        return {"train": made.train_dataloader(), "val": made.val_dataloader()}
    return {"train": made}


def samples_of(batch):
    if isinstance(batch, dict):
        return [round(x * SAMPLES) for x in batch["relevance"].tolist()]
    return (batch[0] if isinstance(batch, tuple | list) else batch).flatten().tolist()


def delivered(loader, batches=None):
    found = [] if loader is None else islice(loader, batches)
    return [sample for batch in found for sample in samples_of(batch)]


def told(make, *args):
    try:
        return make(*args)
    except ValueError as error:
        return str(error)


def all_sides(made, batches=None):
    return {side: delivered(loader, batches) for side, loader in sides_of(made).items()}


def before_the_group(folder):
    """Made before ranks are known; some were used already."""
    made, used = cases(folder), cases(folder)
    early = {name: make() for name, make in made.items()}
    opened = {name: sides_of(make()) for name, make in used.items()}  # loaders were handed out
    for sides in opened.values():
        delivered(sides["train"], 1)
    return early, opened


def in_the_group(rank, world, early, folder):
    made, opened = early
    found = {
        "late": {name: told(all_sides, make()) for name, make in cases(folder).items()},
        "early": {name: told(all_sides, each) for name, each in made.items()},
        "used": {name: told(all_sides, each, 1) for name, each in opened.items()},
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))


def without_rank_0(rank, world, early, folder):
    """Rank 0 passes a seed, or is late: nobody waits for long."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.set_timeout(timedelta(seconds=2))
        found = told(ChunkedDataLoader, torch.arange(SAMPLES), 4, 5, *())
        assert not isinstance(found, str)  # a seed that is passed needs nobody
        (folder / "waited.json").write_text(
            json.dumps(told(partial(ChunkedDataLoader, torch.arange(SAMPLES), 4, 5, **DRAWN)))
        )
        store.set("waited", "")
    else:
        store.wait(["waited"], timedelta(seconds=40))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    ended = run_ranks(2, in_the_group, directory, before=partial(before_the_group, directory))
    ended += run_ranks(2, without_rank_0, directory, before=lambda: None)
    sys.exit(any(ended))
