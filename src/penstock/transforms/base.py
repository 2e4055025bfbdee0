"""The base class of transforms, and the random numbers that they compute from keys."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch

from penstock.errors import PlanError
from penstock.order.permutation import GAMMA, MASK, Keys, mix_array


class Transform(ABC):
    """Base class of transforms, whose randomness comes from one 64-bit key per sample.

    A sample gives bitwise the same result alone and within a batch. Subclasses implement
    `batch`. One with ``takes_fields`` changes the fields of batches that are dicts.
    """

    takes_fields = False

    @abstractmethod
    def batch(self, batch: torch.Tensor, keys: Keys) -> torch.Tensor:
        """Return a new batch of transformed samples; ``batch`` itself is not changed.

        Args:
            batch: Samples along the first axis.
            keys: One for each sample.
        """

    def __call__(self, sample: torch.Tensor, rng: torch.Generator | None = None) -> torch.Tensor:
        """Return one transformed sample.

        Args:
            sample: A sample, without a batch axis: a tensor, or an array of numpy.
            rng: Where to draw from; None for torch's default generator.
        """
        return self.batch(torch.as_tensor(sample).unsqueeze(0), draw_keys(1, rng)).squeeze(0)


def uniforms(keys: Keys, count: int) -> npt.NDArray[np.float64]:
    """Return ``count`` numbers in [0, 1) for each key: splitmix64 starting at the key.

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
    """Return uniform integers in ``[0, bounds)``, computed from numbers in [0, 1).

    >>> integers(np.array([0.0, 0.5, 0.999]), 10).tolist()
    [0, 5, 9]
    """
    return (draws * bounds).astype(np.int64)


def draw_keys(count: int, rng: torch.Generator | None) -> Keys:
    """Return keys drawn from a generator; None for torch's default one."""
    if not isinstance(rng, torch.Generator | None):
        name = f"{type(rng).__module__}.{type(rng).__name__}"
        raise PlanError(f"rng must be a torch.Generator or None, got a {name}")
    device = "cpu" if rng is None else rng.device
    drawn = torch.randint(2**63 - 1, (count,), generator=rng, device=device)
    return drawn.cpu().numpy().astype(np.uint64)
