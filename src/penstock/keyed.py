"""Keyed randomness for datasets, transforms and collators, in any worker.

A loader announces what it reads next. Its seed, the epoch and the samples are sent to the worker
together with the indices, so that a persistent worker always has the current epoch. A dataset then
gets the same random numbers for any number of workers and ranks, and after resuming::

    class Noisy(Dataset):
        def __getitem__(self, index):
            rng = sample_generator(index, "noise")  # depends on (seed, epoch, index) only
            return x[index] + torch.randn(8, generator=rng)

Global generators (``random``, ``numpy.random``, torch's default) are never used here.
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
    """What a loader is reading in this thread.

    Args:
        seed: Of the loader.
        epoch: The epoch of the samples.
        samples: Indices of the samples of the batch.
    """

    seed: int
    epoch: int
    samples: Indices


_reading: ContextVar[Reading | None] = ContextVar("penstock_reading", default=None)


def announce(reading: Reading | None) -> None:
    """Set what `current_reading` returns in this thread; loaders call this before each batch."""
    _reading.set(reading)


def current_reading() -> Reading | None:
    """Return what a loader is reading in this thread; None outside of a loader.

    >>> announce(Reading(seed=7, epoch=3, samples=np.array([5, 6])))
    >>> current_reading().epoch
    3
    >>> announce(None)
    """
    return _reading.get()


def current_epoch(default: int = 0) -> int:
    """Return the epoch of the batch that is being read; ``default`` outside of a loader.

    Args:
        default: The epoch to return outside of a loader.
    """
    reading = _reading.get()
    if reading is not None:
        return reading.epoch
    return whole_number("default", default)


def sample_key(sample: int, *purpose: int | str, seed: int | None = None) -> int:
    """Return the 64-bit key of (seed, purpose, epoch, sample).

    Args:
        sample: Index of the sample.
        purpose: What the key is for, such as ``"noise"``: other purposes give other keys.
        seed: None for the seed of the loader (0 outside of a loader).
    """
    if type(sample) is not int or not 0 <= sample <= LARGEST:  # runs for every sample
        sample = whole_number("sample", sample, minimum=0)
    return derive_key(_base(seed, purpose), sample)


def sample_keys(samples: Indices, *purpose: int | str, seed: int | None = None) -> Keys:
    """Return `sample_key` of many samples at once, for batched transforms.

    Args:
        samples: Indices of the samples.
        purpose: What the keys are for.
        seed: None for the seed of the loader (0 outside of a loader).

    >>> keys = sample_keys(np.array([4, 9]), "noise", seed=1)
    >>> keys.tolist() == [sample_key(4, "noise", seed=1), sample_key(9, "noise", seed=1)]
    True
    """
    indices = np.atleast_1d(samples)
    if indices.dtype.kind not in "iu":
        raise PlanError(f"samples must be integers, got {samples!r}")
    return np.asarray(derive_key(_base(seed, purpose), indices))


def sample_generator(sample: int, *purpose: int | str, seed: int | None = None) -> torch.Generator:
    """Return a generator for (seed, purpose, epoch, sample): the same in any worker or rank.

    Args:
        sample: Index of the sample.
        purpose: What the numbers are for, such as ``"noise"``: other purposes give other numbers.
        seed: None for the seed of the loader (0 outside of a loader).
    """
    return _generator(sample_key(sample, *purpose, seed=seed))


def keyed_generator(seed: int, *path: int | str) -> torch.Generator:
    """Return a new generator whose numbers are a pure function of ``(seed, *path)``.

    Args:
        seed: A number in [0, 2**64).
        path: What the numbers are for: names and numbers.

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
