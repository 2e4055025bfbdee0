"""What a run writes about itself while it trains, for `penstock report`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch

from penstock.errors import StateError
from penstock.extras import optional
from penstock.integrations.lightning.callback import ChunkedTraining
from penstock.metrics import tree_bytes
from penstock.report.run_files import Session, append_chunk, environment, next_session

callbacks = optional("lightning.pytorch.callbacks", extra="train")

LEAST_SECONDS: Final = 5.0  # between two writes
LEAST_TIMES: Final = 300  # the time between two writes, in times of one


class RunEvents(callbacks.Callback):  # type: ignore[misc, name-defined]
    """Writes the figures of the training loader, and losses and scores of each chunk.

    The file is replaced now and then, and at the end, so that a run in progress or a crashed one
    has it too. Its size is bounded, and writing takes less than a percent of the time. A run that
    is killed has every chunk that has ended; timeline, waiting and coverage are at most
    `LEAST_SECONDS` old, or `LEAST_TIMES` as old as a write takes, if that is longer.

    Args:
        run_dir: The run's directory.
        chunked: Knows the loader and what was seen.
    """

    def __init__(self, run_dir: Path, chunked: ChunkedTraining) -> None:
        self._run_dir, self._chunked = run_dir, chunked
        self._number = 0
        self._chunks: list[dict[str, Any]] = []
        self._loss: Any = 0.0  # a tensor, so that nothing waits for the device
        self._batches = 0
        self._next_write = 0.0
        self._environment: dict[str, Any] = {}
        self._trained = False  # a run that is refused leaves no file

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a session."""
        self._number = next_session(self._run_dir, trainer.global_rank)
        self._environment = environment()
        self._chunks, self._loss, self._batches, self._trained = [], 0.0, 0, False

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add up the loss; write if it is time."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._loss, self._batches = self._loss + loss.detach(), self._batches + 1
        if not self._trained or perf_counter() >= self._next_write:
            self._trained = True
            self._write(trainer, "running")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Note the chunk that has ended."""
        loader = self._chunked.loader
        if loader is None:
            return
        cursor = loader.position.skips.to_order(loader.position.cursor)
        loss = float(self._loss) / self._batches if self._batches else None
        self._loss, self._batches = 0.0, 0
        chunk = {"chunk": trainer.current_epoch, "step": trainer.global_step, "loss": finite(loss)}
        chunk |= {"epoch": cursor.epoch, "position": cursor.position}
        scores = {name: finite(value) for name, value in trainer.callback_metrics.items()}
        self._chunks.append(chunk | {"scores": scores})
        if perf_counter() >= self._next_write:
            self._write(trainer, "running")
        else:
            append_chunk(self._run_dir, self._number, trainer.global_rank, self._chunks[-1])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the end."""
        self._write(trainer, "done")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write how it ended."""
        if self._trained:
            ended = type(exception).__name__ if isinstance(exception, Exception) else "stopped"
            self._write(trainer, ended)

    def _write(self, trainer: Any, state: str) -> None:
        loader, begin = self._chunked.loader, perf_counter()
        if loader is None:
            return
        loader.metrics.note_memory(tree_bytes())
        coverage = None
        if trainer.global_rank == 0:
            try:
                coverage = self._chunked.coverage()
            except StateError:  # nothing was trained on yet
                coverage = None
        Session(
            self._number,
            state,
            loader.snapshot(),
            chunks=self._chunks,
            coverage=coverage,
            environment=self._environment,
        ).write(self._run_dir)
        now = perf_counter()
        self._next_write = now + max(LEAST_SECONDS, LEAST_TIMES * (now - begin))
        loader.metrics.pause()  # writing is no part of a step


def finite(value: Any) -> float | None:
    """Return a number; None for one that JSON has no name for."""
    number = None if value is None else float(value)
    return number if number is not None and abs(number) < float("inf") else None
