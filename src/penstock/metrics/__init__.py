"""Measurements: where the time of a loader goes, what batches contain, memory, processor time."""

from penstock.lazy import lazy_names

# lazily: batches and usage need torch, and the sources, which have probes, do not
__all__, __getattr__, __dir__ = lazy_names(__name__)
