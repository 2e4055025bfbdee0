"""`penstock train --dry-run`: time a few steps with weights that are discarded."""

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
from penstock.training.run.checkpoints import AtomicCheckpointIO
from penstock.training.run.directory import KEPT
from penstock.training.run.plan import chunks_of, format_duration, shapes_of, steps_of
from penstock.training.run.trainer import as_list, make_trainer, unlimited_epochs

callbacks = optional("lightning.pytorch.callbacks", extra="train")
dummies = optional("lightning.pytorch.loggers.logger", extra="train")

STEPS: Final = 5  # timed steps, after a first one that warms up
SECONDS: Final = 20.0  # stop timing after this long
VALIDATION_BATCHES: Final = 2


@dataclass(frozen=True, slots=True)
class Forecast:
    """The estimated cost of a run, measured on this machine with one process.

    Args:
        batch: Types and shapes of a batch.
        batch_bytes: Size of its tensors.
        step_seconds: Median time of a training step, including its batch.
        waited_seconds: Mean time of it spent waiting for the batch.
        validation_batch_seconds: Median time of a validation batch; 0 where there is none.
        chunk_batches: Batches per chunk.
        validation_batches: Batches per validation.
        chunks: Chunks of the whole run; infinite where nothing ends it.
        checkpoint_bytes: Size of a checkpoint.
        free_bytes: Free space on the disk of the run directory.
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
        """Time of a chunk and its validation."""
        validation = self.validation_batches * self.validation_batch_seconds
        return self.chunk_batches * self.step_seconds + validation

    @property
    def run_seconds(self) -> float:
        """Time of the whole run."""
        return self.chunks * self.chunk_seconds

    @property
    def disk_bytes(self) -> int:
        """Space of all checkpoints: those kept, the best, and one being written."""
        return (KEPT + 2) * self.checkpoint_bytes

    def text(self) -> str:
        """Return a few lines for the user."""
        chunks = "chunks without end" if math.isinf(self.chunks) else counted(self.chunks, "chunk")
        disk = f"{format_bytes(self.disk_bytes)}, {format_bytes(self.free_bytes)} are free"
        if self.disk_bytes > self.free_bytes:
            disk += ": NOT ENOUGH"
        return "\n".join(
            [
                "dry run: nothing was trained, nothing is kept",
                f"  a batch       {self.batch}, {format_bytes(self.batch_bytes)}",
                f"  a step        {format_duration(self.step_seconds)}, of which "
                f"{format_duration(self.waited_seconds)} waiting for its batch",
                f"  a chunk       {counted(self.chunk_batches, 'step')} and "
                f"{counted(self.validation_batches, 'batch')} of validation, "
                f"{format_duration(self.chunk_seconds)}",
                f"  the run       {chunks}, {format_duration(self.run_seconds)}",
                f"  a checkpoint  {format_bytes(self.checkpoint_bytes)}; all that are kept {disk}",
            ]
        )


class MeasuredEnough(BaseException):
    """Ends the dry run when everything is measured."""


class Stopwatch(callbacks.Checkpoint):  # type: ignore[misc, name-defined]
    """Times steps and validation batches, writes one checkpoint, and ends training.

    It is a checkpoint callback, so that Lightning adds none of its own.
    """

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._file, self._clock = folder / "one.ckpt", clock
        self.steps: list[float] = []
        self.validation: list[float] = []
        self.batch, self.batch_bytes, self.checkpoint_bytes = "", 0, 0
        self._began = self._last = 0.0

    def on_validation_batch_start(self, *_: Any) -> None:
        """Start timing."""
        self._last = self._clock()

    def on_validation_batch_end(self, *_: Any) -> None:
        """Record the time."""
        self.validation.append(self._clock() - self._last)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start timing."""
        self._began = self._last = self._clock()

    def on_train_batch_end(self, trainer: Any, _: Any, __: Any, batch: Any, *___: Any) -> None:
        """Record the time of a step; end when there are enough."""
        now = self._clock()
        self.steps.append(now - self._last)
        self._last = now
        self.batch, self.batch_bytes = shapes_of(batch), bytes_of(batch)
        if len(self.steps) > STEPS or now - self._began > SECONDS:
            self._leave(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End with fewer steps, where the dataset has fewer batches."""
        self._leave(trainer)

    def _leave(self, trainer: Any) -> None:
        trainer.save_checkpoint(self._file, weights_only=False)
        self.checkpoint_bytes = self._file.stat().st_size
        raise MeasuredEnough


def measure(settings: Settings, clock: Callable[[], float] = time.monotonic) -> Forecast:
    """Build everything, take a few steps in one process, and return the estimate."""
    with tempfile.TemporaryDirectory(prefix="penstock-dry-run-") as folder:
        job, chunked = build(settings), ChunkedTraining(settings)
        watch = Stopwatch(Path(folder), clock)
        kwargs = dict(job.trainer_kwargs) | {
            "callbacks": [chunked, watch],
            "plugins": [*as_list(job.trainer_kwargs.get("plugins")), AtomicCheckpointIO()],
            "logger": dummies.DummyLogger(),
            "default_root_dir": folder,
            "num_sanity_val_steps": VALIDATION_BATCHES,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "devices": 1,
            "num_nodes": 1,
            "strategy": "auto",
        }
        trainer = make_trainer(kwargs | unlimited_epochs(kwargs, chunked))
        with suppress(MeasuredEnough):
            trainer.fit(job.module, datamodule=job.data)
    loader = chunked.loader
    steps = None if loader is None else steps_of(loader)
    batches = trainer.num_training_batches if steps is None else (steps.chunk or steps.count)
    here = settings.run_dir.absolute()
    return Forecast(
        batch=watch.batch,
        batch_bytes=watch.batch_bytes,
        step_seconds=median(watch.steps[1:] or watch.steps),  # the first one warms up
        waited_seconds=0.0 if loader is None else loader.waited_seconds / max(1, len(watch.steps)),
        validation_batch_seconds=median(watch.validation or [0.0]),
        chunk_batches=int(batches),
        validation_batches=int(sum(trainer.num_val_batches)),
        chunks=math.inf if loader is None else chunks_of(settings, loader),
        checkpoint_bytes=watch.checkpoint_bytes,
        free_bytes=shutil.disk_usage(next(p for p in (here, *here.parents) if p.is_dir())).free,
    )
