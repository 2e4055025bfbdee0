"""Loaders: a plan and an executor. Batches in order, with a position that can be saved."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
