"""The loaders a run will have, for as many ranks as it will have, without starting it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.integrations.lightning.loaders import (
    as_training_loader,
    as_validation_loader,
    has_position,
)
from penstock.loaders import Loader
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.order import Topology
from penstock.training.build import Job


@dataclass(frozen=True, slots=True)
class PlannedLoaders:
    """What training and validation read.

    Args:
        train: The training loader.
        validation: Those of validation, Penstock's or torch's.
        world: Ranks there will be.
    """

    train: Loader
    validation: tuple[Any, ...]
    world: int

    def on_rank(self, rank: int) -> Loader:
        """The training loader, as that rank has it."""
        place(self.train, rank, self.world)
        return self.train


@contextmanager
def planned_loaders(job: Job, settings: ChunkSettings) -> Iterator[PlannedLoaders]:
    """A block with the loaders of a job, as `ChunkedTraining` will have them."""
    data, world = job.data if job.data is not None else job.module, world_of(job.trainer_kwargs)
    for hook, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        getattr(data, hook, lambda *_: None)(*arguments)
    with ExitStack() as opened:
        train = data.train_dataloader()
        if settings.sized:
            train = as_training_loader(train, settings, name="train_dataloader")
        if not has_position(train):
            raise ConfigError(
                f"what is read cannot be planned: training goes by a {type(train).__name__} of its "
                "own, whose order nobody knows; give a chunk size"
            )
        limit = job.trainer_kwargs.get("limit_train_batches")
        if limit is not None and limit != 1.0 and train.position.chunk is None:
            train.position.use(limit=limit)
        validation = tuple(
            as_validation_loader(each, settings, name="val_dataloader") if settings.sized else each
            for each in several(data.val_dataloader())
        )
        for loader in (train, *validation):
            if isinstance(loader, Loader):
                opened.enter_context(loader)
                place(loader, 0, world)
        yield PlannedLoaders(train, validation, world)


def place(loader: Loader, rank: int, world: int) -> None:
    """Have a loader plan for a rank of a run that is not started."""
    if has_position(loader):
        loader.position.use(topology=Topology(rank, world))


def world_of(trainer: dict[str, Any]) -> int:
    """Ranks there will be, as far as the configuration says."""
    devices, nodes = trainer.get("devices", 1), trainer.get("num_nodes", 1)
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        devices = len(devices)
    return max(1, int(devices)) * int(nodes) if str(devices).isdigit() else int(nodes)


def several(loaders: Any) -> list[Any]:
    """None, one loader, or several in a list or by name, as a list."""
    if loaders is None:
        return []
    if isinstance(loaders, dict):
        return list(loaders.values())
    return list(loaders) if isinstance(loaders, list | tuple) else [loaders]
