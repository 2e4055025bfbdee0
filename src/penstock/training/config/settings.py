"""The settings of a run: a configuration, read and checked, as one record."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.registry import close_name
from penstock.training.config import keys
from penstock.training.config.compose import compose, resolve
from penstock.training.config.files import Provenance

SIZES: Final = ("train_chunk_size", "val_chunk_size")
DEVICES: Final = {"gpu": ("cuda", "mps", "xpu"), "cuda": ("cuda",), "mps": ("mps",)}


@dataclass(slots=True)
class Checker:
    """Checks of keys and values; collects notes about keys that have no effect."""

    provenance: Provenance
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note, unless it was added before."""
        if text not in self.notes:
            self.notes.append(text)

    def error(self, key: str, why: str) -> ConfigError:
        """Return the error for a key, with the file and line that set it."""
        return ConfigError(f"{key} ({self.provenance.where(key)}) {why}")

    def value(self, key: str, value: Any, check: keys.Check) -> None:
        """Refuse a value that ``check`` does not accept."""
        try:
            check(key, value)
        except ConfigError as error:
            raise self.error(key, str(error).removeprefix(key).lstrip()) from error

    def values(self, section: str, found: keys.Section, checks: Mapping[str, keys.Check]) -> None:
        """Refuse every value that its check does not accept."""
        for name in [each for each in checks if each in found]:
            self.value(f"{section}.{name}", found[name], checks[name])

    def unknown(self, section: str, name: str, known: Iterable[str], *, strict: bool) -> None:
        """Refuse an unknown key that is misspelled or misplaced; with ``strict``, every one."""
        key, known = f"{section}.{name}".lstrip("."), list(known)
        if (section, name) in keys.MOVED:
            where = f"give {keys.MOVED[section, name]} instead"
            raise self.error(key, f"is in the wrong section: {where}")
        near = close_name(name, known)
        if near is not None:
            raise self.error(key, f"is unknown: did you mean {near!r}?")
        if strict:
            raise self.error(key, f"is unknown: {section} has {', '.join(sorted(known))}")


def check_sections(found: Mapping[str, Any], check: Checker) -> None:
    """Refuse misspelled sections; note those that have no effect."""
    for name, value in found.items():
        if name in keys.SECTIONS:
            check.value(str(name), value, keys.SECTIONS[name])
        elif name in keys.IGNORED_SECTIONS:
            if value is not None:
                check.note(f"section {name!r} has no effect: {keys.IGNORED_SECTIONS[name]}")
        else:
            check.unknown("", str(name), keys.SECTIONS, strict=False)
            check.note(f"section {name!r} has no effect by itself")


def check_train(found: keys.Section, dataset: Any, check: Checker) -> keys.Section:
    """Return the known keys of ``train``, with chunk sizes that the dataset has instead."""
    kinds = keys.TRAIN | keys.LIMITS
    ignored = [name for name in found if name not in kinds]
    for name in ignored:
        if name not in keys.IGNORED_TRAIN:
            check.unknown("train", str(name), kinds, strict=False)
    if ignored:
        check.note(f"train: {', '.join(sorted(map(str, ignored)))} have no effect")
    check.values("train", found, kinds)
    known = {name: value for name, value in found.items() if name in keys.TRAIN}
    return _dataset_sizes(dataset, found, check) | known


def _dataset_sizes(dataset: Any, train: keys.Section, check: Checker) -> keys.Section:
    if not isinstance(dataset, Mapping):
        return {}
    sizes = {name: dataset[name] for name in SIZES if dataset.get(name) is not None}
    check.values("dataset", sizes, keys.TRAIN)
    for name, size in sizes.items():
        if train.get(name, size) != size:
            check.note(f"train.{name}={train[name]!r} overrides dataset.{name}={size!r}")
    return sizes


def check_loader(found: keys.Section, dataset: Any, check: Checker) -> None:
    """Refuse unknown loader keys; a dataset with a ``_name_`` may take keys of its own."""
    known = keys.LOADER | keys.STREAM_LOADER
    by_name = isinstance(dataset, Mapping) and "_name_" in dataset
    for name in found:
        if name not in known and name not in keys.S4_LOADER:
            check.unknown("loader", str(name), known, strict=not by_name)
    check.values("loader", found, known)


def check_callbacks(found: Any, check: Checker) -> Any:
    """Return the section ``callbacks`` without those of S4 that have no effect."""
    if not isinstance(found, dict) or "_target_" in found or "_name_" in found:
        return found
    used = {}
    for name, section in found.items():
        described = isinstance(section, Mapping) and {"_target_", "_name_"} & section.keys()
        if described or name in keys.CALLBACKS:
            used[name] = section
        elif section is not None:
            if name not in keys.IGNORED_CALLBACKS:
                check.unknown("callbacks", str(name), keys.CALLBACKS, strict=False)
            why = keys.IGNORED_CALLBACKS.get(name, "give it a _target_")
            check.note(f"callback {name!r} has no effect: {why}")
    return used


# -- the section trainer


def split_trainer(resolved: keys.Section, check: Checker) -> tuple[keys.Section, Any, Any]:
    """Return the trainer's arguments, the callbacks and the logger.

    Callbacks and logger may be sections of their own or keys of ``trainer``. Limits may be under
    ``train`` too.
    """
    trainer, train = dict(resolved.get("trainer") or {}), resolved.get("train") or {}
    observers = {}
    for name in ("callbacks", "logger"):
        inside, outside = trainer.pop(name, None), resolved.get(name)
        if inside is not None:
            if outside is not None:
                raise check.error(f"trainer.{name}", f"is given twice: keep the section {name!r}")
            check.value(f"trainer.{name}", inside, keys.SECTIONS[name])
        observers[name] = outside if inside is None else inside
    # null is as good as a key that is left out, which the one under train replaces
    for name in keys.LIMITS:
        if trainer.get(name, 0) is None:
            del trainer[name]
    limits = {name: train[name] for name in keys.LIMITS if train.get(name) is not None}
    both = [name for name in limits if name in trainer]
    if both:
        check.note(f"{', '.join(both)} are under train and trainer: those under trainer are used")
    arguments = check_trainer(limits | trainer, check)
    return arguments, check_callbacks(observers["callbacks"], check), observers["logger"]


def check_trainer(found: keys.Section, check: Checker) -> keys.Section:
    """Return the arguments of Lightning's Trainer."""
    trainer = optional("lightning.pytorch", extra="lightning").Trainer
    known = [n for n in inspect.signature(trainer).parameters if ("trainer", n) not in keys.MOVED]
    used = dict(found)
    target = used.pop("_target_", None)
    if target is not None and not str(target).endswith(".Trainer"):
        raise check.error("trainer._target_", "is not Lightning's Trainer: leave it out")
    for name in found:
        if name in keys.REMOVED_TRAINER:
            check.note(f"trainer.{name} is of an older Lightning and has no effect")
            del used[name]
        elif name in used and name not in known:
            check.unknown("trainer", str(name), known, strict=True)
    check.values("trainer", used, keys.TRAINER)
    if used.pop("enable_checkpointing", None) is False:
        check.note("trainer.enable_checkpointing has no effect: a run always saves checkpoints")
    wanted, present = used.get("accelerator"), torch.accelerator.current_accelerator(True)
    if wanted in DEVICES and getattr(present, "type", None) not in DEVICES[wanted]:
        check.note(f"trainer.accelerator={wanted!r} is not on this machine: training on the cpu")
        used |= {"accelerator": "cpu"} | ({"devices": 1} if "devices" in used else {})
    return used


# the values of ``train`` that a configuration leaves out; the options of chunks are declared in
# `ChunkSettings` only
TRAIN_DEFAULTS: Final = {
    **{each.key: each.default for each in ChunkSettings.options() if each.key in keys.CHUNKS},
    "priority": None,
    "weights": None,
    "epoch_samples": None,
    "batch_by_length": None,
    "seed": 0,
    "interval": "epoch",
    "monitor": "val/loss",
    "mode": "min",
    "checkpoint_every": None,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole configuration by section; a section that is left out is None or empty.

    Args:
        path: The main file.
        root: The folder of the configuration tree.
        resolved: The configuration as a plain dict, with every ``${...}`` resolved.
        train: The section ``train``: an attribute for each key of `TRAIN_DEFAULTS`.
        trainer: Arguments of Lightning's Trainer.
        loader: The section ``loader``.
        dataset: The section ``dataset``; so for the sections that follow.
        run_dir: The directory of the run.
        notes: Remarks for the user, such as keys that have no effect.
        provenance: The file and line of every key.
    """

    path: Path
    root: Path
    resolved: dict[str, Any]
    train: SimpleNamespace
    trainer: dict[str, Any]
    loader: dict[str, Any]
    dataset: Any
    model: Any
    encoder: Any
    decoder: Any
    task: Any
    optimizer: Any
    scheduler: Any
    callbacks: Any
    logger: Any
    imports: tuple[str, ...]
    run_dir: Path
    notes: tuple[str, ...]
    provenance: Provenance = field(repr=False)

    @property
    def chunks(self) -> ChunkSettings:
        """The options of training in chunks."""
        return ChunkSettings.of_config(self)

    def where(self, key: str) -> str:
        """Return where a key (``"model.d_model"``) was set: the file and line, or the override."""
        return self.provenance.where(key)

    def refused(self, key: str, why: str) -> ConfigError:
        """Return the error for a key, with the file and line that set it."""
        return ConfigError(f"{key} ({self.where(key)}): {why}")


def read_settings(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    config_dir: str | os.PathLike[str] | None = None,
) -> Settings:
    """Return the settings of a YAML file, alone or in a tree of files.

    Args:
        path: The file. Its ``defaults`` are looked up in the folders above it.
        overrides: ``key=value``, as Hydra takes them; a key that no file has needs no ``+``.
        config_dir: The folder of its ``defaults``, if that is not above it.

    Raises:
        ConfigError: A file cannot be read, or a key or value is invalid; with file and line.
    """
    composed = compose(path, overrides, None if config_dir is None else Path(config_dir))
    resolved, check = resolve(composed), Checker(composed.provenance)
    check_sections(resolved, check)
    loader, dataset = resolved.get("loader") or {}, resolved.get("dataset")
    check_loader(loader, dataset, check)
    train = check_train(resolved.get("train") or {}, dataset, check)
    trainer, callbacks, logger = split_trainer(resolved, check)
    # a directory per file and experiment, so that two experiments never share one
    default = Path("runs", composed.provenance.path.stem, *composed.experiments)
    objects = ("model", "encoder", "decoder", "task", "optimizer", "scheduler")
    return Settings(
        path=composed.provenance.path,
        root=composed.root,
        resolved=resolved,
        train=SimpleNamespace(**TRAIN_DEFAULTS | train),
        trainer=trainer,
        loader=loader,
        dataset=dataset,
        **{name: resolved.get(name) for name in objects},
        callbacks=callbacks,
        logger=logger,
        imports=tuple(resolved.get("imports") or ()),
        run_dir=Path(resolved.get("run_dir") or default),
        notes=tuple(check.notes),
        provenance=composed.provenance,
    )
