"""The loaders of a fit: fetched once, replaced by Penstock's where needed, handed to Lightning."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from penstock.arguments import with_article
from penstock.errors import ConfigError
from penstock.integrations.lightning import compat
from penstock.loaders import ChunkedDataLoader, Loader
from penstock.loaders.chunk_settings import ChunkSettings, partition_batches
from penstock.loaders.partition import FixedShuffle, subset_order, validation_loader
from penstock.loaders.pass_through import has_position
from penstock.loaders.plan_settings import order_factory
from penstock.loaders.torch_loader import TorchLoader
from penstock.ranks import Seed, current_topology

log = logging.getLogger("penstock")

COPIED: Final = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
)


class RestOfChunk:
    """A loader that reports ``length`` batches, of which only the last ones are still to come.

    Lightning reads the length of a chunk once, at its start, and counts from there.

    Args:
        loader: The loader.
        length: Batches to report.
        ended: Deliver none.
    """

    def __init__(self, loader: Loader, length: int, *, ended: bool = False) -> None:
        self._loader, self._length, self._ended = loader, length, ended

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return iter(()) if self._ended else iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader."""
        # from Python 3.12 on, a protocol does not find methods that only __getattr__ knows
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into the loader."""
        self._loader.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class LoaderSource(compat.DataLoaderSource):  # type: ignore[misc]
    """Where Lightning gets its loaders: calls the user's hook once, however often it reloads.

    Lightning has to reload before every chunk to read its length. A hook that builds a loader on
    every call would then start at the beginning each time.

    Args:
        source: Lightning's own source: loaders, or the module whose hook returns them.
        mode: How Lightning combines several loaders.
        before_reload: Called on every reload, before Lightning sees the loaders.
    """

    def __init__(self, source: Any, mode: str, before_reload: Callable[[], object]) -> None:
        super().__init__(source.instance, source.name)
        self._mode, self._before_reload = mode, before_reload
        self._returned: Any = None  # what the hook returned
        self._combined: Any = None
        self._loaders: list[Any] = []
        self.bypassed = False  # the hook is called as often as Lightning would
        self._handed_over = False
        self.resumed: Any = None  # used instead of the loader for the rest of a resumed chunk

    def dataloader(self) -> Any:
        """Return what Lightning iterates for the next chunk."""
        if self.bypassed and self._handed_over:
            return super().dataloader()
        if self._combined is not None:  # Lightning may have put samplers into other loaders
            self._loaders = [
                loader if isinstance(loader, Loader) else processed
                for loader, processed in zip(self._loaders, self._combined.flattened, strict=True)
            ]
        self.fetch()
        self._before_reload()
        self._handed_over = True
        if self.bypassed:
            return self._returned
        self._combined.flattened = [self._view(loader) for loader in self._loaders]
        return self._combined

    def fetch(self) -> None:
        """Call the hook if it was not called yet; only inside a request of Lightning."""
        if self._combined is None:
            found = self._returned = super().dataloader()
            combined = isinstance(found, compat.CombinedLoader)
            self._combined = found if combined else compat.CombinedLoader(found, self._mode)
            self._loaders = list(self._combined.flattened)

    def request(self) -> None:
        """Ask for the loaders now if Lightning has not done so."""
        if self._combined is None:
            compat.request_loaders(self)

    @property
    def all(self) -> list[Any]:
        """All loaders, of any type."""
        return list(self._loaders)

    @property
    def with_position(self) -> list[Loader]:
        """The loaders of Penstock that have a position."""
        self.request()
        return [loader for loader in self._loaders if has_position(loader)]

    @property
    def moving(self) -> list[Loader]:
        """The loaders that do not start at the beginning each time."""
        if not self.is_defined():
            return []
        return [loader for loader in self.with_position if not loader.position.evaluation]

    @property
    def rotating(self) -> Loader | None:
        """The only loader, if every iteration of it yields the next chunk."""
        moving = self.moving if len(self._loaders) == 1 else []
        return moving[0] if moving and moving[0].position.chunk is not None else None

    @property
    def only_loader(self) -> Loader | None:
        """The only loader, if it is of Penstock."""
        ours = self.with_position
        if ours and len(self._loaders) > 1:
            raise ConfigError(
                f"ChunkedTraining drives one loader, found {len(self._loaders)} in {self.name}: "
                "join the datasets in one (torch's ConcatDataset or StackDataset)"
            )
        return ours[0] if ours else None

    @property
    def length(self) -> int:
        """Batches that Lightning will count for the next chunk."""
        return min(len(self._view(loader)) for loader in self.with_position)

    def _view(self, loader: Any) -> Any:
        if not has_position(loader):
            return loader
        if self.resumed is not None:
            return self.resumed
        left = loader.remaining
        return loader if left == len(loader) else RestOfChunk(loader, left)

    def replace(self, loaders: list[Any]) -> None:
        """Use these loaders instead, one for one, before Lightning sees them."""
        if loaders:
            self._loaders = self._combined.flattened = loaders

    def states(self) -> list[dict[str, Any]]:
        """Return the states of the loaders in `moving`."""
        return [loader.state_dict() for loader in self.moving]

    def load_states(self, states: list[dict[str, Any]]) -> None:
        """Load the states; if their number changed, all loaders start at the beginning."""
        loaders = self.moving
        if len(loaders) != len(states):
            log.warning(
                "%s returns %d loaders, the checkpoint has the states of %d: all start at the "
                "beginning",
                *(self.name, len(loaders), len(states)),
            )
            return
        for loader, state in zip(loaders, states, strict=True):
            loader.load_state_dict(state)

    def close(self) -> None:
        """Stop workers and threads of Penstock's loaders; they can be iterated again."""
        for loader in self._loaders:
            if isinstance(loader, Loader):
                loader.close()


def why_no_position(loader: Any) -> str | None:
    """Return what a loader without a position is and what to use instead; None if it has one."""
    if has_position(loader):
        return None
    if isinstance(loader, ChunkedDataLoader):
        reason = "" if loader.pass_through is None else loader.pass_through.reason
        return (
            f"a ChunkedDataLoader with {reason}, whose order torch decides; use seed= and order= "
            "instead"
        )
    if isinstance(loader, TorchLoader):
        return (
            f"a {type(loader).__name__}, which cannot seek; use a dataset with an index (Parquet, "
            "Zarr, a map-style dataset)"
        )
    kind = "torch DataLoader" if type(loader) is DataLoader else type(loader).__name__
    return f"{with_article(kind)}, not a Penstock loader; wrap the dataset in ChunkedDataLoader"


# -- replacement of torch's loaders


def as_training_loader(loader: Any, settings: ChunkSettings, *, name: str) -> Any:
    """Return a training loader in chunks: ``loader`` itself if it is of Penstock, or an equal one.

    Args:
        loader: The loader of the user.
        settings: Chunk size and order. Without a train chunk size a chunk is a whole pass, and a
            loader that cannot be replaced is returned as it is.
        name: The hook that returned it, for messages.
    """
    size = settings.train_chunk_size
    if not _is_sized(loader, "train_chunk_size", size, name):
        return loader
    if isinstance(loader, Loader) and size is not None:
        loader.set_chunk_size(size)
        return loader
    options = _copied_options(loader)
    world = options.get("world_size") or current_topology(None, None).world
    size = size or partition_batches(len(loader.dataset), loader.batch_size, world)
    return ChunkedDataLoader(
        *(loader.dataset, loader.batch_size, size),
        order=order_factory(settings.order_of),
        seed=settings.seed,
        drop_last=loader.drop_last,
        **options,
    )


def skip_positions(loader: Loader | None, settings: ChunkSettings) -> None:
    """Have a training loader leave out the positions of the setting ``skip``."""
    for epoch, start, stop in settings.skip or ():
        if loader is None:
            raise ConfigError(
                f"skip={[epoch, start, stop]} needs a training loader of Penstock: pass a chunk "
                "size"
            )
        loader.skip(epoch, start, stop)


def as_validation_loader(loader: Any, settings: ChunkSettings, *, name: str) -> Any:
    """Return a validation loader of ``val_chunk_size`` batches, or of the whole partition.

    Args:
        loader: The loader of the user.
        settings: Chunk size, seed, and whether validation cycles.
        name: The hook that returned it, for messages.
    """
    size = settings.val_chunk_size
    if not _is_sized(loader, "val_chunk_size", size, name):
        return loader
    if isinstance(loader, Loader) and size is not None:
        _use_subset(loader, size, settings)
        return loader
    return validation_loader(
        *(loader.dataset, loader.batch_size, size),
        seed=settings.seed,
        cycle=settings.val_cycle,
        **_copied_options(loader),
    )


def _use_subset(loader: Loader, size: int, settings: ChunkSettings) -> None:
    """Set the size of a Penstock loader that has none, as `validation_loader` does."""
    if not isinstance(loader, ChunkedDataLoader):
        raise ConfigError(
            f"val_chunk_size={size!r} of a {type(loader).__name__}: pass chunk_size={size!r} to it "
            "instead, which validates on the first batches"
        )
    loader.position.use(
        order=order_factory(FixedShuffle) if settings.val_cycle else subset_order(size),
        seed=Seed.of(settings.seed),
        chunk=size,
        evaluation=not settings.val_cycle,
        drop_last=False,
    )


def _is_sized(loader: Any, parameter: str, size: int | None, name: str) -> bool:
    """Return whether a loader is to get the size; raise `ConfigError` if it cannot have it."""
    reason = why_not_chunked(loader)
    # a size that nobody asked for is no reason to refuse a loader
    if reason is not None and size is not None:
        raise ConfigError(
            f"{parameter}={size!r} needs an order that is known in advance, and {name} gives a "
            f"loader with {reason}: use a DataLoader of a map-style dataset without it, or a "
            "loader of Penstock with chunk_size"
        )
    if reason is not None or not isinstance(loader, Loader):
        return reason is None
    if size is not None and loader.position.chunk_sizes not in (None, size):
        raise ConfigError(
            f"{parameter}={size!r} was passed to ChunkedTraining, and the {type(loader).__name__} "
            f"has chunk_size={loader.position.chunk_sizes!r}: pass the size in one place"
        )
    return size is not None and loader.position.chunk is None


def why_not_chunked(loader: Any) -> str | None:
    """Return why a loader cannot deliver chunks; None if it can."""
    if isinstance(loader, ChunkedDataLoader):
        return None if loader.pass_through is None else loader.pass_through.reason
    if isinstance(loader, Loader):
        return None
    if not isinstance(loader, DataLoader):
        return f"its own way to iterate ({type(loader).__name__})"
    if isinstance(loader.dataset, IterableDataset):
        return f"an IterableDataset ({type(loader.dataset).__name__})"
    if not len(loader.dataset):  # type: ignore[arg-type]
        return "no samples"
    if type(loader).__iter__ is not DataLoader.__iter__:
        return f"its own way to iterate ({type(loader).__name__})"
    if type(loader.batch_sampler) is not BatchSampler:
        return "batch_size=None" if loader.batch_sampler is None else "a batch_sampler of its own"
    sampler = loader.sampler
    if type(sampler) in (SequentialSampler, DistributedSampler):
        return None
    if type(sampler) is not RandomSampler:
        return f"a sampler of its own ({type(sampler).__name__})"
    if sampler.replacement or sampler.num_samples != len(sampler.data_source):
        return "a RandomSampler that does not give every sample once"
    return None


def _copied_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the settings of a loader that do not concern its order."""
    options = {name: getattr(loader, name) for name in COPIED}
    if loader.num_workers:
        # not persistent_workers: True is better for chunks, and torch's False is only its default
        options["prefetch_factor"] = loader.prefetch_factor
    if type(loader.sampler) is DistributedSampler:
        options |= {"rank": loader.sampler.rank, "world_size": loader.sampler.num_replicas}
    return options
