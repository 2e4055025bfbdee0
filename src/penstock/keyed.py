"""Keyed randomness: what a dataset, transform or collator draws from, in any worker.

A loader announces what it is about to read: its seed, the epoch and the samples travel *with*
the indices to the worker, so a persistent worker is never stale. Whoever runs there asks::

    class Noisy(Dataset):
        def __getitem__(self, index):
            rng = sample_generator(index, "noise")     # of (seed, epoch, index): the same
            return x[index] + torch.randn(8, generator=rng)   # with any workers, ranks, resume

Ambient generators (``random``, ``numpy.random``, torch's default) are never read here.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.order.keys import Keys, derive_key
from penstock.order.permutation import LARGEST, Indices


@dataclass(frozen=True, slots=True)
class Reading:
    """What a loader is reading in this thread right now."""

    seed: int
    epoch: int
    samples: Indices


_reading: ContextVar[Reading | None] = ContextVar("penstock_reading", default=None)


def announce(reading: Reading | None) -> None:
    """Say what is about to be read in this thread; loaders call this before each batch."""
    _reading.set(reading)


def current_reading() -> Reading | None:
    """What a loader is reading in this thread; None outside of one.

    >>> announce(Reading(seed=7, epoch=3, samples=np.array([5, 6])))
    >>> current_reading().epoch
    3
    >>> announce(None)
    """
    return _reading.get()


def current_epoch(default: int = 0) -> int:
    """The epoch that travelled with the indices; ``default`` outside of a loader."""
    reading = _reading.get()
    if reading is not None:
        return reading.epoch
    return whole_number("default", default)


def sample_key(sample: int, *purpose: int | str, seed: int | None = None) -> int:
    """The 64-bit key of (seed, purpose, epoch, sample); the loader's seed unless one is given."""
    if type(sample) is not int or not 0 <= sample <= LARGEST:  # cheap: runs for every sample
        sample = whole_number("sample", sample, minimum=0)
    return derive_key(_base(seed, purpose), sample)


def sample_keys(samples: Indices, *purpose: int | str, seed: int | None = None) -> Keys:
    """`sample_key` of many samples at once, for batched transforms.

    >>> keys = sample_keys(np.array([4, 9]), "noise", seed=1)
    >>> keys.tolist() == [sample_key(4, "noise", seed=1), sample_key(9, "noise", seed=1)]
    True
    """
    indices = np.atleast_1d(samples)
    if indices.dtype.kind not in "iu":
        raise PlanError(f"samples must be integers, got {samples!r}")
    return np.asarray(derive_key(_base(seed, purpose), indices))


def sample_generator(sample: int, *purpose: int | str, seed: int | None = None) -> torch.Generator:
    """A generator of (seed, purpose, epoch, sample): the same draws in any worker or rank."""
    return _generator(sample_key(sample, *purpose, seed=seed))


def keyed_generator(seed: int, *path: int | str) -> torch.Generator:
    """A new generator whose draws are a pure function of ``(seed, *path)``.

    >>> draws = [torch.rand(1, generator=keyed_generator(7, "mask", 3)).item() for _ in range(2)]
    >>> draws[0] == draws[1]
    True
    """
    return _generator(derive_key(seed, *path))


def _base(seed: int | None, purpose: tuple[int | str, ...]) -> int:
    reading = _reading.get()
    if seed is None:
        seed = 0 if reading is None else reading.seed
    return derive_key(seed, "sample", *purpose, 0 if reading is None else reading.epoch)


def _generator(key: int) -> torch.Generator:
    return torch.Generator().manual_seed(key)
