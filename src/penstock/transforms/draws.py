"""Uniform draws computed from keys: many samples at once, each as if it were alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from penstock.order.keys import GAMMA, MASK, Keys, mix_array


def uniforms(keys: Keys, count: int) -> npt.NDArray[np.float64]:
    """``count`` numbers in [0, 1) for each key: splitmix64 begun at the key.

    >>> keys = np.array([5, 6], np.uint64)
    >>> draws = uniforms(keys, 3)
    >>> draws.shape, bool((draws[1] == uniforms(keys[1:], 3)[0]).all())
    ((2, 3), True)
    """
    steps = np.array([GAMMA * (i + 1) & MASK for i in range(count)], np.uint64)
    bits = mix_array(keys[:, None] + steps) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def integers(
    draws: npt.NDArray[np.float64], bounds: int | npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Uniform integers in ``[0, bounds)`` out of numbers in [0, 1).

    >>> integers(np.array([0.0, 0.5, 0.999]), 10).tolist()
    [0, 5, 9]
    """
    return (draws * bounds).astype(np.int64)


def draw_keys(count: int, rng: torch.Generator | None) -> Keys:
    """Keys drawn from a generator; from torch's default one where None is given."""
    device = "cpu" if rng is None else rng.device
    drawn = torch.randint(2**63 - 1, (count,), generator=rng, device=device)
    return drawn.cpu().numpy().astype(np.uint64)
