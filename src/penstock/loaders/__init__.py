"""Loaders: a plan and an executor. Batches in order, with a cursor that tells where it is."""

from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.config import DataLoaderConfig
from penstock.loaders.factory import DataLoaderFactory, OptimalDataLoaderFactory
from penstock.loaders.machine import Machine
from penstock.loaders.monitor import DataLoaderPerformanceMonitor
from penstock.loaders.sampler import ChunkedSampler
from penstock.loaders.steering import (
    SteeringLoader,
    create_loader,
    first_batch,
    set_epoch,
    validate_first_batch,
)
from penstock.loaders.stream import StreamLoader
from penstock.loaders.tuning import tune
from penstock.loaders.worker_init import worker_init_fn

__all__ = [
    "ChunkedDataLoader",
    "ChunkedSampler",
    "DataLoaderConfig",
    "DataLoaderFactory",
    "DataLoaderPerformanceMonitor",
    "Loader",
    "Machine",
    "OptimalDataLoaderFactory",
    "SteeringLoader",
    "StreamLoader",
    "create_loader",
    "first_batch",
    "set_epoch",
    "tune",
    "validate_first_batch",
    "worker_init_fn",
]
