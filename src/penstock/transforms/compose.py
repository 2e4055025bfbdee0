"""Transforms one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.arguments import shown
from penstock.errors import PlanError
from penstock.order.keys import Keys, derive_key
from penstock.transforms.base import Transform
from penstock.transforms.noise import GaussianNoise
from penstock.transforms.standardize import Standardize


class Compose(Transform):
    """Several transforms as one, in the order given: augment raw samples, then standardise.

    Each has keys of its own, by its place. A clamp to the raw range after standardisation would
    make half of the values equal, and is refused.

    >>> from penstock.transforms import SpecAugment
    >>> Compose([SpecAugment(), GaussianNoise(clamp=(0, 1)), Standardize(0.4, 0.2)])
    Compose([SpecAugment(...), GaussianNoise(...), Standardize(...)])
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        if not isinstance(transforms, list | tuple):
            raise PlanError(f"transforms must be a list of Transform, got {shown(transforms)}")
        for each in transforms:
            if not isinstance(each, Transform):
                raise PlanError(f"transforms must be a list of Transform, got one {shown(each)}")
        self.transforms: tuple[Transform, ...] = tuple(transforms)
        standardized = False
        for transform in self.transforms:
            standardized = standardized or isinstance(transform, Standardize)
            if standardized:
                refuse_clamp(transform)

    def batch(self, batch: torch.Tensor, keys: Keys) -> torch.Tensor:
        """Every sample through all transforms."""
        for place, transform in enumerate(self.transforms):
            batch = transform.batch(batch, derive_key(keys, place))  # type: ignore[arg-type]
        return batch

    def __repr__(self) -> str:
        return f"Compose([{', '.join(map(repr, self.transforms))}])"


def refuse_clamp(transform: Transform) -> None:
    """Refuse noise that clamps to a raw range what is standardised already."""
    for part in getattr(transform, "transforms", (transform,)):
        if isinstance(part, GaussianNoise) and part.clamp is not None:
            raise PlanError(
                f"GaussianNoise(clamp={part.clamp!r}) after standardisation would saturate the "
                "data: augment raw samples and standardise afterwards, or leave out clamp"
            )
