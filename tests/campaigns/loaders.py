"""The loaders of the campaigns, each with the storages it reads: a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from penstock import ChunkedDataLoader, RandomChunkLoader, StreamLoader, create_loader
from penstock.loaders import ReplayLoader
from tests.campaigns.orders import ORDERS, tokens
from tests.campaigns.storages import CHUNK, COLUMNS, ROWS, STORAGES, Rows, Storages, numbers

LOCAL = tuple(storage for storage in STORAGES if storage != "s3")


@dataclass(frozen=True, slots=True)
class Options:
    """What a trial draws for a loader."""

    seed: int
    batch: int
    chunk: int | None
    rank: int | None = None
    world: int | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of loader: how it is made, what it reads, how a batch is identified."""

    make: Callable[[Storages, str, Options], Any]
    storages: tuple[str, ...] = STORAGES
    ids: Callable[[Any], list[Any]] = numbers
    ranks: tuple[int, ...] = (1, 2)
    elastic: bool = True  # takes rank= and world_size=, and a state moves between topologies


def chunked(**executor: Any) -> Callable[[Storages, str, Options], Any]:
    """A maker of `ChunkedDataLoader` with an executor."""

    def make(storages: Storages, storage: str, options: Options) -> Any:
        source = storages.source(storage)
        dataset = torch.as_tensor(np.asarray(_all(source))) if storage == "memory" else Rows(source)
        ranks = {"rank": options.rank, "world_size": options.world}
        given = {"shuffle": True, "seed": options.seed, **ranks, **executor}
        return ChunkedDataLoader(dataset, options.batch, options.chunk, **given)

    return make


def _all(source: Any) -> np.ndarray:
    ((name, field),) = source.fields.items()
    out = np.empty((len(source), *field.shape), field.dtype)
    source.read(0, len(source), {name: out})
    return out


def stream(storages: Storages, storage: str, options: Options) -> Any:
    """A `StreamLoader` with windows small enough that an epoch has several."""
    return StreamLoader(
        storages.source(storage),
        options.batch,
        window_blocks=4,
        chunk_size=options.chunk,
        seed=options.seed,
        drop_last=False,
        rank=options.rank,
        world_size=options.world,
    )


def steering(storages: Storages, storage: str, options: Options, workers: int = 0) -> Any:
    """A loader of `create_loader`."""
    return create_loader(
        storages.steering,
        *("train", options.batch, workers),
        distributed=options.world is not None and options.world > 1,
        drop_last=False,
        chunk_size=options.chunk,
    )


def relevance(batch: Any) -> list[float]:
    """What tells the pairs of a steering dataset apart."""
    return [round(value, 7) for value in batch["relevance"].tolist()]


class Numbers(IterableDataset[torch.Tensor]):
    """Rows that can only be read from their beginning, in an order that the epoch decides."""

    num_shards = 1

    def __init__(self, source: Any) -> None:
        self.rows, self.epoch = Rows(source), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        for row in range(len(self.rows)):
            yield self.rows[(row + 7 * self.epoch) % len(self.rows)]


def replay(storages: Storages, storage: str, options: Options, workers: int = 0) -> Any:
    """A `ReplayLoader`."""
    data = Numbers(storages.source(storage))
    return ReplayLoader(
        data, batch_size=options.batch, num_workers=workers, collate_fn=None, seed=options.seed
    )


class Chunks:
    """A `RandomChunkLoader`, iterated like the other loaders: an ``iter()`` is an epoch."""

    def __init__(self, source: Any, options: Options) -> None:
        ((name, _),) = source.fields.items()

        def load(start: int, stop: int) -> np.ndarray:
            out = np.empty((stop - start, COLUMNS), np.int64)
            source.read(start, stop, {name: out})
            return out

        self._loader = RandomChunkLoader(load, ROWS, CHUNK, prefetch=2, seed=options.seed)
        self.state_dict, self.load_state_dict, self.close = (
            self._loader.state_dict,
            self._loader.load_state_dict,
            self._loader.close,
        )

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._loader.start_epoch(ROWS // CHUNK)
        while (chunk := self._loader.get_next_chunk()[0]) is not None:
            yield chunk

    def __enter__(self) -> Chunks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


KINDS = {
    "ChunkedDataLoader inline": Kind(chunked(), LOCAL),
    "ChunkedDataLoader threads": Kind(chunked(executor="threads", threads=2)),
    "ChunkedDataLoader processes": Kind(chunked(num_workers=2), LOCAL),
    "StreamLoader": Kind(stream),
    "RandomChunkLoader": Kind(
        lambda storages, storage, options: Chunks(storages.source(storage), options),
        ranks=(1,),
        elastic=False,
    ),
    "ReplayLoader": Kind(replay, LOCAL, ranks=(1,), elastic=False),
    "ReplayLoader, worker": Kind(
        lambda *args: replay(*args, workers=1), LOCAL, ranks=(1,), elastic=False
    ),
    "create_loader": Kind(steering, ("steering files",), relevance, elastic=False),
    "create_loader, workers": Kind(
        lambda *args: steering(*args, workers=2), ("steering files",), relevance, elastic=False
    ),
    **{
        name: Kind(
            make,
            ("memory", "zarr blosc") if "stream" in name else ("memory",),
            tokens if "packing" in name else numbers,
            ranks=(1, 2, 3, 4),
            elastic=False,  # an epoch does not have every row once
        )
        for name, make in ORDERS.items()
    },
}
