"""`penstock train --dry-run`: time a few steps with weights that are discarded."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

from penstock.extras import optional
from penstock.integrations.lightning.callback import ChunkedTraining
from penstock.loaders.chunk_report import counted
from penstock.metrics import bytes_of
from penstock.sizes import format_bytes
from penstock.training.build import build
from penstock.training.build.objects import as_list
from penstock.training.config import Settings
from penstock.training.run.checkpoints import AtomicCheckpointIO
from penstock.training.run.directory import KEPT
from penstock.training.run.plan import chunks_of, format_duration, shapes_of, steps_of
from penstock.training.run.trainer import make_trainer, unlimited_epochs

callbacks = optional("lightning.pytorch.callbacks", extra="train")
dummies = optional("lightning.pytorch.loggers.logger", extra="train")

STEPS: Final = 5  # timed steps, after a first one that warms up
SECONDS: Final = 20.0  # stop timing after this long
VALIDATION_BATCHES: Final = 2


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


def forecast(settings: Settings, clock: Callable[[], float] = time.monotonic) -> str:
    """Build everything, take a few steps in one process, and return the cost of a run as text."""
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
    loader, batches, chunks, waited = chunked.loader, trainer.num_training_batches, math.inf, 0.0
    if loader is not None:
        steps = steps_of(loader)
        batches, chunks = steps.chunk or steps.count, chunks_of(settings, loader)
        waited = loader.waited_seconds / max(1, len(watch.steps))
    step = median(watch.steps[1:] or watch.steps)  # the first one warms up
    validated = int(sum(trainer.num_val_batches))
    chunk = int(batches) * step + validated * median(watch.validation or [0.0])
    number = "chunks without end" if math.isinf(chunks) else counted(chunks, "chunk")
    size, here = watch.checkpoint_bytes, settings.run_dir.absolute()
    disk = (KEPT + 2) * size  # those kept, the best, and one being written
    free = shutil.disk_usage(next(p for p in (here, *here.parents) if p.is_dir())).free
    return "\n".join(
        [
            "dry run: nothing was trained, nothing is kept",
            f"  a batch       {watch.batch}, {format_bytes(watch.batch_bytes)}",
            f"  a step        {format_duration(step)}, of which {format_duration(waited)} waiting "
            "for its batch",
            f"  a chunk       {counted(int(batches), 'step')} and {counted(validated, 'batch')} of "
            f"validation, {format_duration(chunk)}",
            f"  the run       {number}, {format_duration(chunks * chunk)}",
            f"  a checkpoint  {format_bytes(size)}; all that are kept {format_bytes(disk)}, "
            f"{format_bytes(free)} are free" + (": NOT ENOUGH" if disk > free else ""),
        ]
    )
