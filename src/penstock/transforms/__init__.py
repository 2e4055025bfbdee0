"""Transforms of samples, keyed by sample: standardise, mask, add noise."""

from penstock.transforms.audio import Quantize, Spectrogram
from penstock.transforms.augmentation import (
    GaussianNoise,
    SpecAugment,
    recommended_augmentation,
)
from penstock.transforms.base import Transform
from penstock.transforms.standardize import Compose, Standardize

__all__ = [
    "Compose",
    "GaussianNoise",
    "Quantize",
    "SpecAugment",
    "Spectrogram",
    "Standardize",
    "Transform",
    "recommended_augmentation",
]
