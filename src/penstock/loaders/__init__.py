"""Loaders: a plan and an executor. Batches in order, with a cursor that tells where it is."""

from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.sampler import ChunkedSampler

__all__ = ["ChunkedDataLoader", "ChunkedSampler", "Loader"]
