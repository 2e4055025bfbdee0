"""Loaders: a plan and an executor. Batches in order, with a position that can be saved."""

from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.machine import Machine
from penstock.loaders.replay import ReplayLoader
from penstock.loaders.sampler import ChunkedSampler
from penstock.loaders.stream import StreamLoader
from penstock.loaders.workers import worker_init_fn

__all__ = [
    "ChunkedDataLoader",
    "ChunkedSampler",
    "Loader",
    "Machine",
    "ReplayLoader",
    "StreamLoader",
    "worker_init_fn",
]
