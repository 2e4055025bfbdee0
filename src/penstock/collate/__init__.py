"""Collation of samples into batches: collators, their registry, and task specs."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
