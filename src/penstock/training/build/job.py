"""Everything a trainer needs, built from settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from penstock.datamodules.sequence import SequenceDataset
from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.training.build.data import WAYS, JobData, PartLoaders, make_data
from penstock.training.build.model import make_module
from penstock.training.build.objects import Maker, import_users
from penstock.training.build.registries import callbacks
from penstock.training.config import Settings

log = logging.getLogger("penstock")


def build(settings: Settings) -> Job:
    """Return the module, data, callbacks and loggers that a configuration describes.

    Modules of ``imports`` are imported first. ``train.seed`` seeds the model's weights.
    """
    import_users(settings)
    maker = Maker(settings)
    seed_weights(settings.train.seed)
    data = make_data(settings, maker, _loaders(settings, maker))
    seed_weights(settings.train.seed)  # again: creating the data may have drawn random numbers
    module = make_module(settings, maker, data)
    if data is None and not brings_data(module):
        raise ConfigError(
            f"{settings.path.name} has no training data: give a section 'dataset' with {WAYS}"
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
    """Seed the global generators, from which modules draw their weights, unless it is None."""
    if seed is not None:
        optional("lightning.pytorch", extra="lightning").seed_everything(seed, verbose=False)


def brings_data(module: Any) -> bool:
    """Return whether a LightningModule defines ``train_dataloader`` itself."""
    base = optional("lightning.pytorch", extra="lightning").LightningModule
    return type(module).train_dataloader is not base.train_dataloader


def _check_loaders(settings: Settings, module: Any, data: Any) -> None:
    """Refuse or log loader settings that have no effect."""
    if data is None and settings.loader:
        log.info("section 'loader' has no effect: %s makes its own loaders", type(module).__name__)
    size = settings.train.val_chunk_size
    if size is not None and not _may_validate(data):
        given = (settings.resolved.get("train") or {}).get("val_chunk_size")
        key = f"{'dataset' if given is None else 'train'}.val_chunk_size"
        raise ConfigError(
            f"{key} ({settings.where(key)}): there is no validation data for "
            f"val_chunk_size={size!r}: leave it out, or add validation data to the dataset"
        )


def _may_validate(data: Any) -> bool:
    """Return whether there is validation data, or a user's module that may have some."""
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


@dataclass(frozen=True, slots=True)
class Job:
    """A module, its data, and arguments for the Trainer.

    Args:
        module: The LightningModule.
        data: A LightningDataModule that creates its loaders on first use and then reuses them;
            None where the module has loaders of its own.
        callbacks: The user's callbacks.
        loggers: The user's loggers; if empty, the run uses its own.
        trainer_kwargs: Further arguments of the Trainer.
    """

    module: Any
    data: Any
    callbacks: tuple[Any, ...]
    loggers: tuple[Any, ...]
    trainer_kwargs: dict[str, Any]


lightning = optional("lightning.pytorch.callbacks", extra="lightning")

callbacks.add("early_stopping", lightning.EarlyStopping)
callbacks.add("learning_rate_monitor", lightning.LearningRateMonitor)


def make_callbacks(settings: Settings, maker: Maker) -> tuple[Any, ...]:
    """Return the user's callbacks, in order."""
    return tuple(
        maker.make(f"callbacks.{name}", _named(name, each), callbacks)
        for name, each in _items(settings.callbacks)
    )


def make_loggers(settings: Settings, maker: Maker) -> tuple[Any, ...]:
    """Return the user's loggers: none for the run's own, a dummy where logging is off."""
    if settings.logger is False:
        return (optional("lightning.pytorch.loggers.logger", extra="lightning").DummyLogger(),)
    if settings.logger is True:
        return ()
    return tuple(
        maker.make(f"logger.{name}", _of_lightning(each)) for name, each in _items(settings.logger)
    )


def _items(section: Any) -> list[tuple[Any, Any]]:
    """Return named, listed or single sections as pairs of name and section."""
    if not section:
        return []
    if isinstance(section, dict) and ("_target_" in section or "_name_" in section):
        return [(section.get("_name_", 0), section)]
    found = section.items() if isinstance(section, dict) else enumerate(section)
    return [(name, each) for name, each in found if each is not None]


def _named(name: Any, section: Any) -> Any:
    """Add the ``_name_`` of a callback that is named by its key, as in S4."""
    if isinstance(section, dict) and not {"_target_", "_name_"} & section.keys():
        return {"_name_": name, **section}
    return _of_lightning(section)


def _of_lightning(section: Any) -> Any:
    """Replace a class of ``pytorch_lightning``, which this Trainer rejects, by Lightning's."""
    target = section.get("_target_", "") if isinstance(section, dict) else ""
    if not str(target).startswith("pytorch_lightning."):
        return section
    return section | {"_target_": target.replace("pytorch_lightning", "lightning.pytorch", 1)}
