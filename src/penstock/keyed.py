"""Keyed randomness for datasets, transforms and collators, in any worker.

A loader announces what it reads next. Its seed, the epoch and the samples are sent to the worker
together with the indices, so that a persistent worker always has the current epoch. A dataset then
gets the same random numbers for any number of workers and ranks, and after resuming::

    class Noisy(Dataset):
        def __getitem__(self, index):
            rng = sample_generator(index, "noise")  # depends on (seed, pass, index) only
            return x[index] + torch.randn(8, generator=rng)

Global generators (``random``, ``numpy.random``, torch's default) are never used here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from penstock.arguments import shown, whole_number
from penstock.errors import PlanError
from penstock.order.permutation import LARGEST, Indices, Keys, derive_key


@dataclass(frozen=True, slots=True)
class Reading:
    """What a loader is reading in this thread.

    Args:
        seed: The loader's seed.
        epoch: The epoch of the samples.
        samples: Indices of the samples of the batch.
        passes: The pass of each sample: how many times it was read before. None if all are in pass
            ``epoch``, as in every order that has each sample once per epoch.
        row: The row of the batch that is being read; None if it is read as a whole.
    """

    seed: int
    epoch: int
    samples: Indices
    passes: Indices | None = None
    row: int | None = None

    def passes_of(self, samples: Indices) -> int | Indices:
        """Return the pass of each of these samples of the batch."""
        if self.passes is None:
            return self.epoch
        if self.row is not None:
            return int(self.passes[self.row])
        if samples.shape == self.samples.shape:
            in_order = np.array_equal(samples, self.samples)
            if in_order or not np.array_equal(np.sort(samples), np.sort(self.samples)):
                return self.passes  # the same samples by other indices, such as those of a subset
        found = dict(zip(self.samples.tolist(), self.passes.tolist(), strict=True))
        return np.array([found.get(sample, self.epoch) for sample in samples.tolist()], np.int64)


_NONE: Final = np.empty(0, np.int64)
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


def current_passes(samples: Indices, default: int = 0) -> int | Indices:
    """Return the pass of each sample that is being read; ``default`` outside of a loader.

    The pass equals the epoch if the order has every sample once per epoch. Random numbers that
    are keyed by the pass differ between the occurrences of a sample that repeats.

    Args:
        samples: Indices of samples of the batch.
        default: The pass to return outside of a loader.
    """
    reading = _reading.get()
    if reading is not None:
        return reading.passes_of(np.atleast_1d(samples))
    return whole_number("default", default)


class AnnouncedIndices(list[int]):
    """Indices of a batch; iteration announces each index as the one that is being read."""

    def __iter__(self) -> Iterator[int]:
        reading = _of_batch(len(self))
        if reading is None:
            yield from super().__iter__()
            return
        try:
            for row, sample in enumerate(super().__iter__()):
                announce(replace(reading, row=row))
                yield sample
        finally:
            announce(reading)


def announced(indices: list[int]) -> list[int]:
    """Return the indices of the batch, as `AnnouncedIndices` if samples may repeat."""
    return indices if _of_batch(len(indices)) is None else AnnouncedIndices(indices)


@contextmanager
def renumbered(rows: Indices, samples: Indices, count: int) -> Iterator[None]:
    """Announce the indices that samples of the batch have in an inner dataset.

    Args:
        rows: Which samples of the batch these are.
        samples: Their indices in the inner dataset.
        count: Samples requested; nothing is announced if the batch has a different number.
    """
    reading = _of_batch(count)
    if reading is None or reading.passes is None:
        yield
        return
    announce(replace(reading, samples=samples, passes=reading.passes[rows]))
    try:
        yield
    finally:
        announce(reading)


def _of_batch(count: int) -> Reading | None:
    """Return the reading if its samples may repeat and its batch has ``count`` samples."""
    reading = _reading.get()
    if reading is None or reading.passes is None or reading.row is not None:
        return None
    return reading if len(reading.samples) == count else None


def sample_key(sample: int, *purpose: int | str, seed: int | None = None) -> int:
    """Return the 64-bit key of (seed, purpose, pass, sample); the pass is usually the epoch.

    Args:
        sample: Index of the sample.
        purpose: What the key is for, such as ``"noise"``: different purposes, different keys.
        seed: None for the seed of the loader (0 outside of a loader).
    """
    if type(sample) is not int or not 0 <= sample <= LARGEST:  # runs for every sample
        sample = whole_number("sample", sample, minimum=0)
    reading = _reading.get()
    one = _NONE if reading is None or reading.passes is None else np.array([sample])
    key = derive_key(_base(seed, purpose, one), sample)
    return key if isinstance(key, int) else int(key[0])


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
    if indices.dtype.kind not in "iu" or (indices.size and indices.min() < 0):
        raise PlanError(f"samples must be integers of at least 0, got {shown(samples)}")
    return np.asarray(derive_key(_base(seed, purpose, indices), indices))


def sample_generator(sample: int, *purpose: int | str, seed: int | None = None) -> torch.Generator:
    """Return a generator for (seed, purpose, pass, sample): the same in any worker or rank.

    Args:
        sample: Index of the sample.
        purpose: What the numbers are for, such as ``"noise"``: other purposes, other numbers.
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


def _base(seed: int | None, purpose: tuple[int | str, ...], samples: Indices) -> int | Keys:
    reading = _reading.get()
    if seed is None:
        seed = 0 if reading is None else reading.seed
    passes = 0 if reading is None else reading.passes_of(samples)
    return derive_key(seed, "sample", *purpose, passes)


def _generator(key: int) -> torch.Generator:
    return torch.Generator().manual_seed(key)
