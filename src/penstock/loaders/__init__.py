"""Loaders: a plan and an executor. Batches in order, with a position that can be saved."""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.loaders.base import Loader as Loader
    from penstock.loaders.chunked import ChunkedDataLoader as ChunkedDataLoader
    from penstock.loaders.replay import ReplayLoader as ReplayLoader
    from penstock.loaders.sampler import ChunkedSampler as ChunkedSampler
    from penstock.loaders.stream import StreamLoader as StreamLoader
    from penstock.loaders.workers import worker_init_fn as worker_init_fn

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": "Loader",
        "chunked": "ChunkedDataLoader",
        "replay": "ReplayLoader",
        "sampler": "ChunkedSampler",
        "stream": "StreamLoader",
        "workers": "worker_init_fn",
    },
)
