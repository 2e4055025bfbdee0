"""A job from settings: everything a trainer needs."""

from __future__ import annotations

import logging
from typing import Any

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.datamodules.sequence import SequenceDataset
from penstock.training.build.data import JobData
from penstock.training.build.importing import import_users
from penstock.training.build.job import Job
from penstock.training.build.learning import make_module
from penstock.training.build.listeners import make_callbacks, make_loggers
from penstock.training.build.making import Maker
from penstock.training.build.part_loaders import PartLoaders
from penstock.training.build.parts import WAYS, make_data
from penstock.training.config import Settings

log = logging.getLogger("penstock")


def build(settings: Settings) -> Job:
    """The module, data, callbacks and loggers that a configuration describes.

    Modules of ``imports`` are imported first, then ``train.seed`` seeds the model's weights.
    """
    import_users(settings)
    maker = Maker(settings)
    seed_weights(settings.train.seed)
    data = make_data(settings, maker, _loaders(settings, maker))
    seed_weights(settings.train.seed)  # again: the same ones, whatever the data drew
    module = make_module(settings, maker, data)
    if data is None and not brings_data(module):
        raise ConfigError(
            f"{settings.path.name} says nothing about training data: give a section 'dataset' "
            f"with {WAYS}"
        )
    _check_loaders(settings, module, data)
    return Job(
        module=module,
        data=data,
        callbacks=make_callbacks(settings, maker),
        loggers=make_loggers(settings, maker),
        trainer_kwargs=_trainer(settings, maker),
    )


def seed_weights(seed: int | None) -> None:
    """Seed the global generators, from which modules draw their weights; nothing for None."""
    if seed is not None:
        optional("lightning.pytorch", extra="lightning").seed_everything(seed, verbose=False)


def brings_data(module: Any) -> bool:
    """Does a LightningModule have a ``train_dataloader`` of its own?"""
    base = optional("lightning.pytorch", extra="lightning").LightningModule
    return type(module).train_dataloader is not base.train_dataloader


def _check_loaders(settings: Settings, module: Any, data: Any) -> None:
    """Refuse, or say, what the configuration says about loaders that there are not."""
    if data is None and settings.loader:
        log.info("section 'loader' has no effect: %s makes its own loaders", type(module).__name__)
    size = settings.train.val_chunk_size
    if size is not None and not _may_validate(data):
        given = (settings.resolved.get("train") or {}).get("val_chunk_size")
        key = f"{'dataset' if given is None else 'train'}.val_chunk_size"
        raise ConfigError(
            f"{key} ({settings.where(key)}): there is no validation data for "
            f"val_chunk_size={size!r}: leave it out, or give the dataset some"
        )


def _may_validate(data: Any) -> bool:
    """Is there validation data, or a module of the user's that may have some?"""
    if isinstance(data, SequenceDataset):
        return data.dataset_val is not None
    return not isinstance(data, JobData) or data.has("val")


def _loaders(settings: Settings, maker: Maker) -> PartLoaders:
    options = {
        name: maker.make(f"loader.{name}", value) if isinstance(value, dict) else value
        for name, value in settings.loader.items()
    }
    return PartLoaders(options, ChunkSettings.of_config(settings))


def _trainer(settings: Settings, maker: Maker) -> dict[str, Any]:
    return {
        name: maker.make(f"trainer.{name}", value)
        if isinstance(value, dict) and "_target_" in value
        else value
        for name, value in settings.trainer.items()
    }
