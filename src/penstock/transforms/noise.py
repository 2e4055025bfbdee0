"""Gaussian noise."""

from __future__ import annotations

from typing import Any

import torch

from penstock.arguments import real_number, shown
from penstock.errors import BatchError, PlanError
from penstock.order.keys import Keys, derive_key
from penstock.transforms.base import Transform
from penstock.transforms.draws import uniforms


class GaussianNoise(Transform):
    """Normal noise added to samples, keyed by sample.

    Nothing is clamped unless told: ``clamp=(0, 1)`` suits raw spectrograms and images, and would
    destroy standardised data, half of which lies below 0.

    Args:
        std: of the noise, in units of the data.
        p: share of samples that get noise at all.
        clamp: lowest and highest value of a sample with noise; None leaves all values.

    >>> from penstock.keyed import keyed_generator
    >>> noisy = GaussianNoise(std=0.5, p=1.0)(torch.zeros(10_000), keyed_generator(7))
    >>> round(noisy.std().item(), 1)
    0.5
    """

    def __init__(
        self, std: float = 0.02, p: float = 0.8, clamp: tuple[float, float] | None = None
    ) -> None:
        self.std = real_number("std", std, minimum=0)
        self.p = real_number("p", p, minimum=0, maximum=1)
        self.clamp = None if clamp is None else _range(clamp)

    def batch(self, batch: torch.Tensor, keys: Keys) -> torch.Tensor:
        """Every sample with the noise of its own key."""
        if not batch.is_floating_point():
            raise BatchError(
                f"noise needs floating point samples, got {batch.dtype}: scale them to [0, 1] first"
            )
        noisy = batch.clone()
        applies = uniforms(keys, 1)[:, 0] < self.p
        # a reseeded generator fills a row eight times faster than vectorised counters do
        rng, seeds = torch.Generator(), derive_key(keys, "noise")
        for row, seed in enumerate(seeds.tolist()):  # type: ignore[union-attr]
            if applies[row]:
                noise = torch.randn(batch.shape[1:], generator=rng.manual_seed(seed))
                noisy[row].add_(noise.to(batch), alpha=self.std)
                if self.clamp is not None:
                    noisy[row].clamp_(*self.clamp)
        return noisy

    def __repr__(self) -> str:
        return f"GaussianNoise(std={self.std}, p={self.p}, clamp={self.clamp})"


def _range(clamp: Any) -> tuple[float, float]:
    if not isinstance(clamp, tuple | list) or len(clamp) != 2:
        raise PlanError(f"clamp must be (lowest, highest), got {shown(clamp)}")
    lowest, highest = (real_number("clamp", edge) for edge in clamp)
    if not lowest < highest:
        raise PlanError(f"clamp must be (lowest, highest), got {clamp!r}")
    return lowest, highest
