"""Folders of spectrogram files with a table of labels and authors."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
