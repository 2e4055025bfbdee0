"""Map-style datasets: read a batch in one call, standardise, augment, mix, pack, replace."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
