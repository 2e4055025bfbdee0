"""What changes samples on their way, keyed by sample: standardise, mask, add noise."""

from penstock.transforms.base import Transform
from penstock.transforms.compose import Compose
from penstock.transforms.noise import GaussianNoise
from penstock.transforms.recommended import recommended_augmentation
from penstock.transforms.spec_augment import SpecAugment
from penstock.transforms.spectrogram import Spectrogram
from penstock.transforms.standardize import Standardize

__all__ = [
    "Compose",
    "GaussianNoise",
    "SpecAugment",
    "Spectrogram",
    "Standardize",
    "Transform",
    "recommended_augmentation",
]
