"""Folders of spectrogram files with a table of labels and authors."""

from penstock.domains.spectrograms.folder import SpectrogramFolder
from penstock.domains.spectrograms.tables import MOST_CLASSES, read_pixel_table

__all__ = ["MOST_CLASSES", "SpectrogramFolder", "read_pixel_table"]
