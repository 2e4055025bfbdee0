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
from penstock.loaders.base import current_topology
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.loaders.partition import FixedShuffle, choose_samples, validation_loader
from penstock.loaders.seeds import HeldOrder, Seed

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
    seed = Seed.of(settings.seed)
    order = HeldOrder.following(seed, samples_of(loader), settings.order_of)
    return ChunkedDataLoader(
        *(loader.dataset, loader.batch_size, size),
        order=order,
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
    course, samples = loader.position, samples_of(loader)
    course.evaluation, course.drop_last = not cycle, False
    if cycle:
        loader._held = HeldOrder.following(seed, samples, FixedShuffle)
        course._order, course.seed = loader._held, seed
    else:
        choose_samples(loader, size, seed)
    loader.set_chunk_size(size)


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
        return loader._passes_through
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
