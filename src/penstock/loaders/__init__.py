"""Loaders: a plan and an executor. Batches in order, with a cursor that tells where it is."""

from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.sampler import ChunkedSampler
from penstock.loaders.steering import (
    SteeringLoader,
    create_loader,
    first_batch,
    set_epoch,
    validate_first_batch,
)

__all__ = [
    "ChunkedDataLoader",
    "ChunkedSampler",
    "Loader",
    "SteeringLoader",
    "create_loader",
    "first_batch",
    "set_epoch",
    "validate_first_batch",
]
