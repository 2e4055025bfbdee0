"""Building what a trainer needs (module, data, callbacks, loggers) from the settings of a run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from penstock.datamodules.sequence import SequenceDataset
from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.training.build import registries
from penstock.training.build.data import WAYS, JobData, PartLoaders, make_data
from penstock.training.build.model import TaskModule, make_module
from penstock.training.build.objects import Maker, import_users
from penstock.training.config import Settings

__all__ = ["Job", "TaskModule", "build", "registries"]

log = logging.getLogger("penstock")
lightning = optional("lightning.pytorch", extra="lightning")
registries.callbacks.add("early_stopping", lightning.callbacks.EarlyStopping)
registries.callbacks.add("learning_rate_monitor", lightning.callbacks.LearningRateMonitor)


@dataclass(frozen=True, slots=True)
class Job:
    """A module, its data, and arguments for the Trainer.

    Args:
        module: The LightningModule.
        data: The data module; None where the module has loaders of its own.
        callbacks: The user's callbacks.
        loggers: The user's loggers; none for those of the run directory.
        trainer_kwargs: Arguments of Lightning's Trainer.
    """

    module: Any
    data: Any
    callbacks: tuple[Any, ...]
    loggers: tuple[Any, ...]
    trainer_kwargs: dict[str, Any]


def build(settings: Settings) -> Job:
    """Return the module, data, callbacks and loggers that a configuration describes.

    Modules of ``imports`` are imported first. ``train.seed`` seeds the model's weights.
    """
    import_users(settings)
    maker = Maker(settings)
    seed_weights(settings.train.seed)
    options = {n: _made(maker, f"loader.{n}", v) for n, v in settings.loader.items()}
    data = make_data(settings, maker, PartLoaders(options, settings.chunks))
    seed_weights(settings.train.seed)  # again: creating the data may have drawn random numbers
    module = make_module(settings, maker, data)
    own = type(module).train_dataloader is not lightning.LightningModule.train_dataloader
    if data is None and not own:
        raise ConfigError(
            f"{settings.path.name} has no training data: add a section 'dataset' with {WAYS}"
        )
    _check_loaders(settings, module, data)
    if isinstance(settings.logger, bool):  # False: none; True: those of the run directory
        dummy = lightning.loggers.logger.DummyLogger
        loggers = () if settings.logger else (dummy(),)
    else:
        found = _items(settings.logger)
        loggers = tuple(maker.make(f"logger.{n}", _of_lightning(each)) for n, each in found)
    return Job(
        module=module,
        data=data,
        callbacks=tuple(
            maker.make(f"callbacks.{name}", _named(name, each), registries.callbacks)
            for name, each in _items(settings.callbacks)
        ),
        loggers=loggers,
        trainer_kwargs={n: _made(maker, f"trainer.{n}", v) for n, v in settings.trainer.items()},
    )


def seed_weights(seed: int | None) -> None:
    """Seed the global generators, from which modules draw their weights, unless it is None."""
    if seed is not None:
        lightning.seed_everything(seed, verbose=False)


def _made(maker: Maker, key: str, value: Any) -> Any:
    """Return the object of a section with a ``_target_``; any other value as it is."""
    of_object = isinstance(value, dict) and ("_target_" in value or key.startswith("loader."))
    return maker.make(key, value) if of_object else value


def _check_loaders(settings: Settings, module: Any, data: Any) -> None:
    """Refuse or log loader settings that have no effect."""
    if data is None and settings.loader:
        log.info("section 'loader' has no effect: %s makes its own loaders", type(module).__name__)
    if isinstance(data, SequenceDataset):
        may_validate = data.dataset_val is not None
    else:  # a user's own module may have validation data
        may_validate = not isinstance(data, JobData) or data.has("val")
    size = settings.train.val_chunk_size
    if size is not None and not may_validate:
        given = (settings.resolved.get("train") or {}).get("val_chunk_size")
        key = f"{'dataset' if given is None else 'train'}.val_chunk_size"
        why = f"there is no validation data for val_chunk_size={size!r}: leave it out, or add "
        raise settings.refused(key, f"{why}validation data to the dataset")


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
