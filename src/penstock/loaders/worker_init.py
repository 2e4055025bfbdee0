"""Seeds for what draws from ambient generators in a worker process."""

from __future__ import annotations

import random

import numpy as np
import torch


def worker_init_fn(worker_id: int) -> None:
    """Seed ``random``, ``numpy.random`` and torch of a worker, each worker its own way.

    torch has seeded it with its base seed plus ``worker_id`` already: that sum is spread over the
    three, and nothing is added a second time. Never raises.
    """
    seed = torch.initial_seed()
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - a user's own ambient draws are what it is for
    torch.manual_seed(seed)
