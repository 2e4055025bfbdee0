"""A configuration, read and checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.training.config.places import Places


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """The section ``train``: how training is cut into chunks, and what it goes by.

    Sizes are batches of one rank. See `ChunkedTraining` for what each of the first eight does.
    """

    train_chunk_size: int | None = None
    val_chunk_size: int | None = None
    chunk_seed: int | None = 42
    chunk_shuffle: bool = True
    chunk_order: str = "shuffled"
    val_cycle: bool = False
    cycle: bool = True
    max_passes: int | None = None
    seed: int | None = 0  # of the model's first weights; None: they differ from run to run
    interval: str = "epoch"  # of the scheduler
    monitor: str = "val/loss"  # the score that schedulers and checkpoints go by
    mode: str = "min"  # is less of it better, or more?
    checkpoint_every: int | None = None  # optimizer steps, besides every chunk's end


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a configuration says, by section; what it leaves out is None or empty.

    ``resolved`` is the whole of it as a plain dict, with nothing left to interpolate.
    """

    path: Path
    root: Path  # of the configuration tree
    resolved: dict[str, Any]
    train: TrainSettings
    trainer: dict[str, Any]  # arguments of Lightning's Trainer
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
    places: Places = field(repr=False)

    def where(self, key: str) -> str:
        """Words for where a key (``"model.d_model"``) was given: the file and line."""
        return self.places.where(key)
