"""Data modules: a dataset and its loaders for training, validation and test."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
