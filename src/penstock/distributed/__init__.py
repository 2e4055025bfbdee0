"""Several ranks: which one this is, whether all have the same data, and failures of one of them."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
