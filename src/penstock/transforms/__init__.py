"""Transforms of samples, keyed by sample: standardise, mask, add noise."""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.transforms.audio import Quantize as Quantize
    from penstock.transforms.audio import Spectrogram as Spectrogram
    from penstock.transforms.augmentation import GaussianNoise as GaussianNoise
    from penstock.transforms.augmentation import SpecAugment as SpecAugment
    from penstock.transforms.augmentation import (
        recommended_augmentation as recommended_augmentation,
    )
    from penstock.transforms.base import Transform as Transform
    from penstock.transforms.standardize import Compose as Compose
    from penstock.transforms.standardize import Standardize as Standardize

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "audio": "Quantize Spectrogram",
        "augmentation": "GaussianNoise SpecAugment recommended_augmentation",
        "base": "Transform",
        "standardize": "Compose Standardize",
    },
)
