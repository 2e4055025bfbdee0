from penstock.transforms.audio import Quantize as Quantize
from penstock.transforms.audio import Spectrogram as Spectrogram
from penstock.transforms.augmentation import Compose as Compose
from penstock.transforms.augmentation import GaussianNoise as GaussianNoise
from penstock.transforms.augmentation import SpecAugment as SpecAugment
from penstock.transforms.augmentation import Standardize as Standardize
from penstock.transforms.augmentation import recommended_augmentation as recommended_augmentation
from penstock.transforms.base import Transform as Transform
