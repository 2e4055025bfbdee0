"""What changes samples on their way: spectrograms."""

from penstock.transforms.spectrogram import Spectrogram

__all__ = ["Spectrogram"]
