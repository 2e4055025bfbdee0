"""Seeds for what draws from ambient generators in a worker process."""

from __future__ import annotations

import random

import numpy as np
import torch

from penstock.keyed import Reading
from penstock.order import derive_key

_reseeds = False  # in this process: set where the function below was a worker's


def worker_init_fn(worker_id: int) -> None:
    """Seed ``random``, ``numpy.random`` and torch of a worker, each worker its own way.

    torch has seeded it with its base seed plus ``worker_id`` already: that sum is used for all
    three, and nothing is added a second time. In a loader of Penstock's the worker is seeded anew
    before each batch, by (seed, epoch, batch): a persistent worker repeats no epoch's draws, and
    ambient draws are the same for any number of workers, and after a resume. Never raises.
    """
    global _reseeds  # noqa: PLW0603 - a worker process is one reader, from its start to its end
    _reseeds = True
    seed_ambient(torch.initial_seed())


def reseed(reading: Reading) -> None:
    """Seed this worker for a batch that is about to be read, where `worker_init_fn` was its own."""
    if _reseeds:
        first = int(reading.samples[0]) if len(reading.samples) else 0
        seed_ambient(derive_key(reading.seed, "ambient", reading.epoch, first))


def seed_ambient(seed: int) -> None:
    """Seed the three ambient generators of this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - a user's own ambient draws are what it is for
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 0.3 ms, for devices too
