"""Each section, checked and completed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.training.config.checking import Checker
from penstock.training.config.keys import (
    CALLBACKS,
    IDLE_CALLBACKS,
    IDLE_SECTIONS,
    IDLE_TRAIN,
    LIMITS,
    LOADER,
    S4_LOADER,
    SECTIONS,
    STREAM_LOADER,
    TRAIN,
    Section,
)
from penstock.training.config.record import TrainSettings

SIZES = ("train_chunk_size", "val_chunk_size")


def check_sections(found: Mapping[str, Any], check: Checker) -> None:
    """Refuse sections that are misspelt; say which do nothing."""
    for name, value in found.items():
        if name in SECTIONS:
            check.value(str(name), value, SECTIONS[name])
        elif name in IDLE_SECTIONS:
            if value is not None:
                check.note(f"section {name!r} has no effect: {IDLE_SECTIONS[name]}")
        elif check.unknown("", str(name), SECTIONS, strict=False):
            check.note(f"section {name!r} has no effect by itself")


def read_train(found: Section, dataset: Any, check: Checker) -> TrainSettings:
    """The section ``train``, with chunk sizes that were given to the dataset instead."""
    kinds = TRAIN | LIMITS
    idle = [name for name in found if name in IDLE_TRAIN]
    for name in found:
        if name not in kinds and name not in IDLE_TRAIN:
            check.unknown("train", str(name), kinds, strict=False)
            idle.append(name)
    if idle:
        check.note(f"train: {', '.join(sorted(map(str, idle)))} have no effect")
    check.values("train", found, kinds)
    return TrainSettings(
        **{n: v for n, v in (_of_dataset(dataset, found, check) | found).items() if n in TRAIN}
    )


def _of_dataset(dataset: Any, found: Section, check: Checker) -> Section:
    if not isinstance(dataset, Mapping):
        return {}
    sizes = {name: dataset[name] for name in SIZES if dataset.get(name) is not None}
    check.values("dataset", sizes, TRAIN)
    for name, size in sizes.items():
        if found.get(name, size) != size:
            check.note(f"train.{name}={found[name]!r} wins over dataset.{name}={size!r}")
    return sizes


def limits_of(train: Section, trainer: Section, check: Checker) -> Section:
    """``limit_*_batches`` under ``train``, where ``trainer`` does not have them itself."""
    limits = {name: train[name] for name in LIMITS if train.get(name) is not None}
    both = [name for name in limits if trainer.get(name) is not None]
    if both:
        check.note(f"{', '.join(both)} are under train and trainer: those under trainer win")
    return {name: value for name, value in limits.items() if name not in both}


def read_callbacks(found: Any, check: Checker) -> Any:
    """The section ``callbacks`` without those of S4 that are not here."""
    if not isinstance(found, dict) or "_target_" in found or "_name_" in found:
        return found
    kept = {}
    for name, section in found.items():
        own = isinstance(section, Mapping) and {"_target_", "_name_"} & section.keys()
        if own or name in CALLBACKS:
            kept[name] = section
        elif section is not None:
            if name not in IDLE_CALLBACKS:
                check.unknown("callbacks", str(name), CALLBACKS, strict=False)
            why = IDLE_CALLBACKS.get(name, "give it a _target_")
            check.note(f"callback {name!r} has no effect: {why}")
    return kept


def check_loader(found: Section, dataset: Any, check: Checker) -> None:
    """Refuse loader keys that nobody takes; those of S4 go to a dataset that has a name."""
    known = LOADER | STREAM_LOADER
    by_name = isinstance(dataset, Mapping) and "_name_" in dataset
    for name in found:
        if name not in known and name not in S4_LOADER:
            check.unknown("loader", str(name), known, strict=not by_name)
    check.values("loader", found, known)
