from penstock.loaders.base import Loader as Loader
from penstock.loaders.chunked import ChunkedDataLoader as ChunkedDataLoader
from penstock.loaders.replay import ReplayLoader as ReplayLoader
from penstock.loaders.sampler import ChunkedSampler as ChunkedSampler
from penstock.loaders.stream import StreamLoader as StreamLoader
from penstock.loaders.workers import worker_init_fn as worker_init_fn
