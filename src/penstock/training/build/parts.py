"""The data of a configuration: a dataset by name, an object, paths, or a part each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from penstock.errors import ConfigError
from penstock.datamodules.inputs import is_source
from penstock.datamodules.sequence import SequenceDataset
from penstock.datamodules.splitting import check_share, split
from penstock.sources import open_source
from penstock.training.build.data import JobData, lightning
from penstock.training.build.making import Maker, located
from penstock.training.build.part_loaders import BATCH_SIZE, PartLoaders
from penstock.training.build.registries import datasets
from penstock.training.config import Settings

log = logging.getLogger("penstock")

PARTS = ("train", "val", "test")
WAYS = "a _name_, a _target_, a path, or sections train and val"


def make_data(settings: Settings, maker: Maker, loaders: PartLoaders) -> Any:
    """The data module of the section ``dataset``; the user's own, if that is what it makes."""
    section = settings.dataset
    if section is None:
        return None
    section = {"path": section} if isinstance(section, str) else section
    if "_name_" in section or _is_sequence_dataset(section):
        return _of_sequences(section, maker, loaders)
    if "_target_" in section or "path" in section:
        return _of_one(settings, _opened("dataset", section, maker), loaders)
    if any(part in section for part in PARTS):
        return _of_parts(settings, maker, loaders)
    raise ConfigError(f"dataset ({settings.where('dataset')}) must have {WAYS}")


def _is_sequence_dataset(section: Mapping[str, Any]) -> bool:
    if "_target_" not in section:
        return False
    try:
        found = located(str(section["_target_"]))
    except (ImportError, AttributeError):
        return False  # which is refused where it is made
    return isinstance(found, type) and issubclass(found, SequenceDataset)


def _of_sequences(section: Mapping[str, Any], maker: Maker, loaders: PartLoaders) -> Any:
    """A dataset after S4's conventions, which makes its loaders itself."""
    chunks = loaders.chunks
    told = {
        "loader": {"batch_size": BATCH_SIZE} | loaders.options,
        "train_chunk_size": chunks.train_chunk_size,
        "val_chunk_size": chunks.val_chunk_size,
        "chunk_seed": chunks.seed,
        "chunk_shuffle": chunks.shuffle,
        "chunk_order": chunks.order,
        "val_cycle": chunks.val_cycle,
    }
    made = maker.make("dataset", section, datasets, told=told)
    with maker.refusals("dataset", section):
        made.setup()
    if made.dataset_train is None:
        raise ConfigError(f"dataset {made} has no training data: its setup() found none")
    return made


def _of_one(settings: Settings, made: Any, loaders: PartLoaders) -> Any:
    if hasattr(made, "train_dataloader"):
        return _of_module(made, loaders)
    share = settings.dataset.get("val_split") if isinstance(settings.dataset, Mapping) else None
    if share is None:
        return loaded({"train": made}, loaders)
    check_share(share)
    steps = loaders.options.get("steps", 1)
    if is_source(made) and steps > 1:
        raise ConfigError(
            f"dataset.val_split={share!r} ({settings.where('dataset.val_split')}) with "
            f"loader.steps={steps}: a random split leaves gaps, and samples of {steps} consecutive "
            "rows would reach over them; give dataset.train and dataset.val a path each"
        )
    train, val = split(made, share, loaders.chunks.seed or 0)
    return loaded({"train": train, "val": val}, loaders)


def _of_module(made: Any, loaders: PartLoaders) -> Any:
    """A data module of the user's own, made Lightning's if it is not."""
    if loaders.options:
        log.info("section 'loader' has no effect: %s makes its own loaders", type(made).__name__)
    if isinstance(made, lightning.LightningDataModule):
        return made
    hooks = {part: getattr(made, f"{part}_dataloader", None) for part in PARTS}
    return JobData(made, {part: hook for part, hook in hooks.items() if hook is not None})


def _of_parts(settings: Settings, maker: Maker, loaders: PartLoaders) -> JobData:
    section = settings.dataset
    for name in section:
        if name not in PARTS:
            raise ConfigError(
                f"dataset.{name} ({settings.where(f'dataset.{name}')}) is unknown: the parts of "
                f"a dataset are {', '.join(PARTS)}"
            )
    if section.get("train") is None:
        raise ConfigError(f"dataset.train ({settings.where('dataset')}): there is no training data")
    made = {
        part: _opened(f"dataset.{part}", section[part], maker)
        for part in PARTS
        if section.get(part) is not None
    }
    return loaded(made, loaders)


def loaded(parts: Mapping[str, Any], loaders: PartLoaders) -> JobData:
    """A data module over datasets or sources, one for each part."""
    if any(is_source(data) for data in parts.values()) and loaders.idle_in_streams:
        log.info(
            "a stream has its own threads: loader.%s",
            ", loader.".join(loaders.idle_in_streams) + " have no effect",
        )
    by_part = {"train": loaders.training, "val": loaders.validation, "test": loaders.testing}
    makers = {part: partial(by_part[part], data) for part, data in parts.items()}
    return JobData(parts["train"], makers)


def _opened(key: str, section: Any, maker: Maker) -> Any:
    """A dataset, or a source for a path."""
    if isinstance(section, str):
        return open_source(section)
    if isinstance(section, Mapping) and "path" in section and "_target_" not in section:
        options = {n: v for n, v in section.items() if n not in ("path", "val_split")}
        return open_source(section["path"], **options)
    if not isinstance(section, Mapping):
        found = type(section).__name__
        raise maker.refused(
            key, f"must be one path or section, got {found}: join several into one dataset"
        )
    plain = {n: v for n, v in section.items() if n != "val_split"}
    made = maker.make(key, plain)
    return made if is_source(made) or not isinstance(made, Mapping) else open_source(made)
