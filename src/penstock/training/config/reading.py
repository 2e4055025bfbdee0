"""Settings from a YAML file: composed, resolved, checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.training.config.checking import Checker
from penstock.training.config.composing import Composed, compose
from penstock.training.config.record import Settings
from penstock.training.config.resolving import resolve
from penstock.training.config.sections import (
    check_loader,
    check_sections,
    limits_of,
    read_callbacks,
    read_train,
)
from penstock.training.config.trainer import read_trainer, without_listeners


def read_settings(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    config_dir: str | os.PathLike[str] | None = None,
) -> Settings:
    """The settings of a YAML file, alone or in a tree of them, with ``key=value`` overrides.

    Args:
        path: The file. Its ``defaults`` are looked for in the folders above it.
        overrides: As Hydra takes them; a key that no file has needs no ``+``.
        config_dir: The folder its ``defaults`` are in, if they are not above it.
    """
    composed = compose(path, overrides, None if config_dir is None else Path(config_dir))
    return settings_of(composed, resolve(composed))


def settings_of(composed: Composed, resolved: dict[str, Any]) -> Settings:
    """The settings, section by section, each checked."""
    check = Checker(composed.places)
    check_sections(resolved, check)
    train, loader = resolved.get("train") or {}, resolved.get("loader") or {}
    dataset = resolved.get("dataset")
    trainer, listeners = without_listeners(resolved, check)
    check_loader(loader, dataset, check)
    kept = ("model", "encoder", "decoder", "task", "optimizer", "scheduler")
    run_dir = resolved.get("run_dir")
    return Settings(
        path=composed.places.path,
        root=composed.root,
        resolved=resolved,
        train=read_train(train, dataset, check),
        trainer=read_trainer(limits_of(train, trainer, check) | trainer, check),
        loader=loader,
        dataset=dataset,
        **{name: resolved.get(name) for name in kept},
        callbacks=read_callbacks(listeners["callbacks"], check),
        logger=listeners["logger"],
        imports=tuple(resolved.get("imports") or ()),
        run_dir=Path(run_dir) if run_dir else _default_run_dir(composed),
        notes=tuple(check.notes),
        places=composed.places,
    )


def _default_run_dir(composed: Composed) -> Path:
    """Of the file, and of the experiment of its tree: two experiments never share one."""
    return Path("runs", composed.places.path.stem, *composed.experiments)
