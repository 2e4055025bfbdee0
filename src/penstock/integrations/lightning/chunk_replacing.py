"""Penstock's loaders in the place of torch's, with the same settings."""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from penstock.errors import ConfigError
from penstock.loaders import ChunkedDataLoader, Loader
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.loaders.partition import FixedShuffle, subset_order, validation_loader
from penstock.loaders.position import order_factory
from penstock.ranks import current_topology
from penstock.seeds import Seed

COPIED = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
)


def training_loader(loader: Any, settings: ChunkSettings, *, name: str) -> Any:
    """A training loader in chunks: the same one if it is Penstock's, or one of the same settings.

    Without a train chunk size it is one chunk a pass; what cannot be replaced is then left alone.
    """
    size, reason = settings.train_chunk_size, why_not(loader)
    if reason is not None:
        return left_alone(loader, reason, name, "train_chunk_size", size)
    if isinstance(loader, Loader):
        if size is not None and loader.position.chunk is None:
            loader.set_chunk_size(size)
        elif size is not None and loader.position.chunk != size:
            raise two_sizes("train_chunk_size", size, loader)
        return loader
    options = options_of(loader)
    world = options.get("world_size") or current_topology(None, None).world
    size = size or batches_of(samples_of(loader), loader.batch_size, world)
    return ChunkedDataLoader(
        *(loader.dataset, loader.batch_size, size),
        order=order_factory(settings.order_of),
        seed=settings.seed,
        drop_last=loader.drop_last,
        **options,
    )


def scoring_loader(loader: Any, settings: ChunkSettings, *, name: str) -> Any:
    """A validation loader of so many batches; without a size, of the whole partition."""
    size, reason = settings.val_chunk_size, why_not(loader)
    if reason is not None:
        return left_alone(loader, reason, name, "val_chunk_size", size)
    if isinstance(loader, Loader):
        if size is not None and loader.position.chunk is None:
            choose(loader, size, Seed.of(settings.seed), cycle=settings.val_cycle)
        elif size is not None and loader.position.chunk != size:
            raise two_sizes("val_chunk_size", size, loader)
        return loader
    return validation_loader(
        *(loader.dataset, loader.batch_size, size),
        seed=settings.seed,
        cycle=settings.val_cycle,
        **options_of(loader),
    )


def choose(loader: Loader, size: int, seed: Seed, *, cycle: bool) -> None:
    """A validation loader of Penstock that has no size gets one, as `validation_loader` gives."""
    if not isinstance(loader, ChunkedDataLoader):
        raise ConfigError(
            f"val_chunk_size={size!r} of a {type(loader).__name__}: give it chunk_size={size!r} "
            "itself; the first batches are then validated on"
        )
    loader.position.use(
        order=order_factory(FixedShuffle) if cycle else subset_order(size),
        seed=seed,
        chunk=size,
        evaluation=not cycle,
        drop_last=False,
    )


def two_sizes(name: str, size: int, loader: Any) -> ConfigError:
    """Which of two sizes is meant cannot be known."""
    kind, has = type(loader).__name__, getattr(loader, "chunk_size", None)
    return ConfigError(
        f"{name}={size!r} was given to ChunkedTraining, and the {kind} has chunk_size={has!r}: "
        "give the size in one place"
    )


def left_alone(loader: Any, reason: str, name: str, parameter: str, size: int | None) -> Any:
    """The loader itself where no size is asked of it; refused where one is."""
    if size is None:
        return loader
    raise ConfigError(
        f"{parameter}={size!r} needs an order that is known in advance, and {name} gives a loader "
        f"with {reason}: give a DataLoader of a map-style dataset without it, or a loader of "
        "Penstock with chunk_size"
    )


def why_not(loader: Any) -> str | None:
    """What of a loader cannot be had in chunks, in words."""
    if isinstance(loader, ChunkedDataLoader):
        return None if loader.pass_through is None else loader.pass_through.reason
    if isinstance(loader, Loader):
        return None
    if not isinstance(loader, DataLoader):
        return f"its own way to iterate ({type(loader).__name__})"
    if isinstance(loader.dataset, IterableDataset):
        return f"an IterableDataset ({type(loader.dataset).__name__})"
    if not samples_of(loader):
        return "no samples"
    if type(loader).__iter__ is not DataLoader.__iter__:
        return f"its own way to iterate ({type(loader).__name__})"
    if type(loader.batch_sampler) is not BatchSampler:
        return "batch_size=None" if loader.batch_sampler is None else "a batch_sampler of its own"
    return sampler_of_its_own(loader.sampler)


def sampler_of_its_own(sampler: Any) -> str | None:
    """What of a sampler is not torch's plain shuffle, order, or share of a rank."""
    if type(sampler) in (SequentialSampler, DistributedSampler):
        return None
    if type(sampler) is not RandomSampler:
        return f"a sampler of its own ({type(sampler).__name__})"
    if sampler.replacement or sampler.num_samples != len(sampler.data_source):
        return "a RandomSampler that does not give every sample once"
    return None


def options_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """The settings of a loader that do not concern its order."""
    options = {name: getattr(loader, name) for name in COPIED}
    if loader.num_workers:
        options["prefetch_factor"] = loader.prefetch_factor
        # workers of ours are persistent unless told otherwise, and torch's False may be no wish
    if type(loader.sampler) is DistributedSampler:
        options |= {"rank": loader.sampler.rank, "world_size": loader.sampler.num_replicas}
    return options


def samples_of(loader: Any) -> int:
    """Samples of the dataset behind a loader."""
    return len(loader.dataset)


def batches_of(samples: int, batch_size: int, world: int) -> int:
    """Batches of a whole partition on each of ``world`` ranks."""
    return -(-samples // (batch_size * world))
