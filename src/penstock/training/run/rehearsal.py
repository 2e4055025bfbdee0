"""`penstock train --dry-run`: a few steps with weights that are thrown away, and what they tell."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from penstock.extras import optional
from penstock.integrations.lightning.callback import ChunkedTraining
from penstock.loaders.chunk_report import counted
from penstock.metrics import bytes_of
from penstock.sizes import format_bytes
from penstock.training.build import build
from penstock.training.config import Settings
from penstock.training.run.checkpoint_io import WholeFiles
from penstock.training.run.directory import KEPT
from penstock.training.run.fitting import as_list, make_trainer, passes_alone
from penstock.training.run.planning import chunks_of, steps_of
from penstock.training.run.units import in_time, shapes_of

callbacks = optional("lightning.pytorch.callbacks", extra="train")
dummies = optional("lightning.pytorch.loggers.logger", extra="train")

STEPS: Final = 5  # that are measured, after a first one that also warms up
SECONDS: Final = 20.0  # after which fewer will do
VALIDATION_BATCHES: Final = 2


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run would take, as measured on this machine with one process.

    Args:
        batch: Words for what a batch is.
        batch_bytes: Of its tensors.
        step_seconds: A training step, with reading its batch; the median.
        waited_seconds: Of that, waiting for the batch; the mean.
        validation_batch_seconds: A batch of validation; 0 where there is none.
        chunk_batches: Of a chunk.
        validation_batches: Of a validation.
        chunks: Of the whole run; infinite where nothing ends it.
        checkpoint_bytes: Of a checkpoint.
        free_bytes: On the disk of the run directory.
    """

    batch: str
    batch_bytes: int
    step_seconds: float
    waited_seconds: float
    validation_batch_seconds: float
    chunk_batches: int
    validation_batches: int
    chunks: float
    checkpoint_bytes: int
    free_bytes: int

    @property
    def chunk_seconds(self) -> float:
        """A chunk and its validation."""
        validation = self.validation_batches * self.validation_batch_seconds
        return self.chunk_batches * self.step_seconds + validation

    @property
    def run_seconds(self) -> float:
        """The whole run."""
        return self.chunks * self.chunk_seconds

    @property
    def disk_bytes(self) -> int:
        """The checkpoints kept, and one more while it is written."""
        return (KEPT + 2) * self.checkpoint_bytes

    def text(self) -> str:
        """A few lines to read."""
        chunks = "chunks without end" if math.isinf(self.chunks) else counted(self.chunks, "chunk")
        disk = f"{format_bytes(self.disk_bytes)}, {format_bytes(self.free_bytes)} are free"
        if self.disk_bytes > self.free_bytes:
            disk += ": NOT ENOUGH"
        return "\n".join(
            [
                "dry run: nothing was trained, nothing is kept",
                f"  a batch       {self.batch}, {format_bytes(self.batch_bytes)}",
                f"  a step        {in_time(self.step_seconds)}, of which "
                f"{in_time(self.waited_seconds)} waiting for its batch",
                f"  a chunk       {counted(self.chunk_batches, 'step')} and "
                f"{counted(self.validation_batches, 'batch')} of validation, "
                f"{in_time(self.chunk_seconds)}",
                f"  the run       {chunks}, {in_time(self.run_seconds)}",
                f"  a checkpoint  {format_bytes(self.checkpoint_bytes)}; all that are kept {disk}",
            ]
        )


class Enough(BaseException):
    """All was measured."""


class Watch(callbacks.Checkpoint):  # type: ignore[misc, name-defined]
    """Times steps and batches of validation, writes a checkpoint elsewhere, and ends it.

    A checkpoint callback, so that Lightning adds none of its own.
    """

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._file, self._clock = folder / "one.ckpt", clock
        self.steps: list[float] = []
        self.validation: list[float] = []
        self.batch, self.batch_bytes, self.checkpoint_bytes = "", 0, 0
        self._began = self._last = 0.0

    def on_validation_batch_start(self, *_: Any) -> None:
        """Begin to time it."""
        self._last = self._clock()

    def on_validation_batch_end(self, *_: Any) -> None:
        """It took so long."""
        self.validation.append(self._clock() - self._last)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._began = self._last = self._clock()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A step is done, its batch read; leave when there are enough."""
        now = self._clock()
        self.steps.append(now - self._last)
        self._last = now
        self.batch, self.batch_bytes = shapes_of(batch), bytes_of(batch)
        if len(self.steps) > STEPS or now - self._began > SECONDS:
            self._leave(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A dataset of fewer batches than that: leave with what there is."""
        self._leave(trainer)

    def _leave(self, trainer: Any) -> None:
        trainer.save_checkpoint(self._file, weights_only=False)
        self.checkpoint_bytes = self._file.stat().st_size
        raise Enough

    @property
    def step_seconds(self) -> float:
        """A step; the first, which warms up, counts only where it is alone."""
        return median(self.steps[1:] or self.steps)

    @property
    def validation_seconds(self) -> float:
        """A batch of validation."""
        return median(self.validation) if self.validation else 0.0


def rehearse(settings: Settings, clock: Callable[[], float] = time.monotonic) -> Forecast:
    """Build everything, take a few steps in one process, throw it all away, and tell."""
    with tempfile.TemporaryDirectory(prefix="penstock-dry-run-") as folder:
        job, chunked, watch = build(settings), ChunkedTraining(settings), Watch(Path(folder), clock)
        kwargs = dict(job.trainer_kwargs) | {
            "callbacks": [chunked, watch],
            "plugins": [*as_list(job.trainer_kwargs.get("plugins")), WholeFiles()],
            "logger": dummies.DummyLogger(),
            "default_root_dir": folder,
            "num_sanity_val_steps": VALIDATION_BATCHES,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "devices": 1,
            "num_nodes": 1,
            "strategy": "auto",
        }
        trainer = make_trainer(kwargs | passes_alone(kwargs, chunked))
        with suppress(Enough):
            trainer.fit(job.module, datamodule=job.data)
        return forecast_of(settings, trainer, chunked, watch)


def forecast_of(settings: Settings, trainer: Any, chunked: Any, watch: Watch) -> Forecast:
    """What was measured, for the whole of the run."""
    loader = chunked.loader
    steps = None if loader is None else steps_of(loader)
    batches = trainer.num_training_batches if steps is None else (steps.chunk or steps.count)
    waited = 0.0 if loader is None else loader.waited_seconds / max(1, len(watch.steps))
    return Forecast(
        batch=watch.batch,
        batch_bytes=watch.batch_bytes,
        step_seconds=watch.step_seconds,
        waited_seconds=waited,
        validation_batch_seconds=watch.validation_seconds,
        chunk_batches=int(batches),
        validation_batches=int(sum(trainer.num_val_batches)),
        chunks=math.inf if loader is None else chunks_of(settings, loader),
        checkpoint_bytes=watch.checkpoint_bytes,
        free_bytes=shutil.disk_usage(existing_parent(settings.run_dir)).free,
    )


def existing_parent(path: Path) -> Path:
    """The nearest directory that is there."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path
