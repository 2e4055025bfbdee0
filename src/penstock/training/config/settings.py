"""The settings of a run: a configuration, read and checked, as one record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.training.config.checks import (
    Checker,
    check_loader,
    check_sections,
    check_train,
    split_trainer,
)
from penstock.training.config.compose import compose, resolve
from penstock.training.config.files import Provenance


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """The section ``train``.

    The first ten are those of `ChunkedTraining`; sizes are batches of one rank.

    Args:
        train_chunk_size: Training batches between two validations.
        val_chunk_size: Batches of a validation.
        chunk_seed: Seed of the order, and of the choice of validation samples.
        chunk_shuffle: False reads the dataset in its own order.
        chunk_order: ``"shuffled"``, ``"sequential"`` or ``"block"``.
        val_cycle: Validate on the next chunk each time.
        cycle: False ends training after one pass.
        max_passes: Passes of the dataset after which training ends.
        validate_every: Chunks between two validations, or ``{min, max, loss_change}``.
        skip: Positions to leave out, each ``[epoch, start, stop]``.
        priority: Parts of the training data that come more often: ``{parts, weights,
            cover_within_epochs}``, the arguments of `penstock.datasets.mixture.prioritized`.
        seed: Seed of the model's initial weights; None draws one for each run.
        interval: How often the scheduler steps: ``"epoch"`` or ``"step"``.
        monitor: The metric that schedulers and the best checkpoint depend on.
        mode: ``"min"`` or ``"max"``: which values of ``monitor`` are better.
        checkpoint_every: Optimizer steps between checkpoints inside a chunk.
    """

    train_chunk_size: Any = None
    val_chunk_size: int | None = None
    chunk_seed: int | None = 42
    chunk_shuffle: bool = True
    chunk_order: str = "shuffled"
    val_cycle: bool = False
    cycle: bool = True
    max_passes: int | None = None
    validate_every: Any = None
    skip: Any = None
    priority: Any = None
    seed: int | None = 0
    interval: str = "epoch"
    monitor: str = "val/loss"
    mode: str = "min"
    checkpoint_every: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole configuration by section; a section that is left out is None or empty.

    Args:
        path: The main file.
        root: The folder of the configuration tree.
        resolved: The configuration as a plain dict, with every ``${...}`` resolved.
        train: The section ``train``.
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
    train: TrainSettings
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

    def where(self, key: str) -> str:
        """Return where a key (``"model.d_model"``) was set: the file and line, or the override."""
        return self.provenance.where(key)


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
    train = TrainSettings(**check_train(resolved.get("train") or {}, dataset, check))
    trainer, callbacks, logger = split_trainer(resolved, check)
    # a directory per file and experiment, so that two experiments never share one
    default = Path("runs", composed.provenance.path.stem, *composed.experiments)
    objects = ("model", "encoder", "decoder", "task", "optimizer", "scheduler")
    return Settings(
        path=composed.provenance.path,
        root=composed.root,
        resolved=resolved,
        train=train,
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
