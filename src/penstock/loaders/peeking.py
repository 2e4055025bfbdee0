"""Looking at a first batch without a trace in what follows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from penstock.errors import BatchError


@contextmanager
def undisturbed(*generators: torch.Generator | None) -> Iterator[None]:
    """A block that leaves the ambient generators, and these, as it found them.

    >>> with undisturbed():
    ...     first = torch.rand(1)
    >>> bool(torch.rand(1) == first)
    True
    """
    own = [(generator, generator.get_state()) for generator in generators if generator is not None]
    ambient = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(ambient[0])
        np.random.set_state(ambient[1])  # noqa: NPY002
        torch.set_rng_state(ambient[2])
        for generator, state in own:
            generator.set_state(state)


def first_of_torch(loader: DataLoader[Any]) -> Any:
    """The first batch a loader of torch's would give, read here: no worker, no draw left behind."""
    options: dict[str, Any] = {"collate_fn": loader.collate_fn}
    if isinstance(loader.dataset, IterableDataset):
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        options["batch_sampler"] = loader.batch_sampler
    else:
        options |= {"batch_size": None, "sampler": loader.sampler}
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    drawing = (loader.generator, *(getattr(sampler, "generator", None) for sampler in samplers))
    with undisturbed(*drawing):
        apart = DataLoader(loader.dataset, generator=loader.generator, **options)
        return first_of(apart)


def first_of(batches: Any) -> Any:
    """The first of some batches; that there is none is an error."""
    for batch in batches:
        return batch
    raise BatchError(
        "the loader gives no batch: it is empty, or drop_last drops the only one; "
        "use a smaller batch size, or drop_last=False"
    )
