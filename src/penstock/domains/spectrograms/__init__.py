"""Folders of spectrogram files with a table of labels and authors."""

from penstock.domains.spectrograms.metadata import read_pixel_table
from penstock.domains.spectrograms.spectrograms import SpectrogramFolder

__all__ = ["SpectrogramFolder", "read_pixel_table"]
