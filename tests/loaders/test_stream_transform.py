"""Transforms on a stream: by batch, or sample by sample with keys of their own."""

import numpy as np
import pytest
import torch

from penstock import GaussianNoise, PlanError, StreamLoader

DATA = np.repeat(np.arange(60, dtype="f4")[:, None, None], 12, 1).repeat(5, 2)


def noise_by_sample(**options):
    """Sample -> its noise, in the first epoch."""
    loader = StreamLoader(
        DATA, transform=GaussianNoise(std=0.01, p=1.0), drop_last=False, **options
    )
    with loader:
        samples = torch.cat(list(loader))
    return {int(sample.mean().round()): sample - sample.mean().round() for sample in samples}


def test_a_transform_changes_each_sample_by_its_own_key_in_any_batch_or_geometry():
    first = noise_by_sample(batch_size=7)
    other = noise_by_sample(batch_size=20, block_samples=3, window_blocks=2)
    assert first.keys() == set(range(60)) == other.keys()
    assert all(torch.equal(first[i], other[i]) for i in first)
    assert not torch.equal(first[0], first[1])


def test_a_transform_of_one_array_is_refused_for_named_fields():
    with pytest.raises(PlanError, match="GaussianNoise changes one array, the source has fields"):
        StreamLoader({"x": DATA, "y": DATA[:, 0, 0]}, 4, transform=GaussianNoise())
