"""Transforms of samples, keyed by sample: standardise, mask, add noise."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
