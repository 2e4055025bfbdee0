"""Keys of the samples in a batch, for collators that draw."""

from __future__ import annotations

import numpy as np

from penstock.keyed import current_reading, sample_keys
from penstock.order.keys import Keys


def batch_keys(count: int, purpose: str, *, seed: int | None) -> Keys:
    """One key for each of the batch's ``count`` samples.

    In a Penstock loader they are keys of (seed, epoch, sample): the same draws with any workers,
    ranks, batch size or resume. Elsewhere, or where the dataset gave another number of samples
    than it was asked for, a sample counts as its place in the batch (of the batch's first
    sample), so that equal calls draw equally. ``seed`` None: the loader's seed, else 0.

    >>> batch_keys(2, "mask", seed=7).tolist() == batch_keys(3, "mask", seed=7).tolist()[:2]
    True
    """
    reading = current_reading()
    if reading is None:
        return sample_keys(np.arange(count), purpose, seed=seed)
    if len(reading.samples) != count:
        return sample_keys(np.arange(count), purpose, int(reading.samples[0]), seed=seed)
    return sample_keys(reading.samples, purpose, seed=seed)
