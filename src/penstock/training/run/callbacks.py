"""Callbacks of a run: checkpoints, signals, and what a run writes for `penstock report`."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, Final

import torch
import torch.distributed as dist

from penstock.errors import ConfigError, StateError
from penstock.extras import optional
from penstock.integrations.lightning import compat
from penstock.integrations.lightning.callback import ChunkedTraining
from penstock.metrics import tree_bytes
from penstock.report.run_files import Session, append_chunk, environment, next_session
from penstock.training import checkpoint_files as files
from penstock.training.run.directory import RunPaths

plugins = optional("lightning.pytorch.plugins.io", extra="train")
callbacks = optional("lightning.pytorch.callbacks", extra="train")

log = logging.getLogger("penstock")

LOSSES: Final = ("val/loss", "val_loss", "valid/loss", "validation/loss")


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of a validation, and the step it was measured after."""

    metric: str
    value: float
    step: int

    def beats(self, other: Score | None, mode: str) -> bool:
        """Return whether this score is better; NaN never is.

        >>> Score("val/loss", 0.2, 9).beats(Score("val/loss", 0.3, 4), "min")
        True
        >>> Score("val/loss", math.nan, 9).beats(None, "min")
        False
        """
        if math.isnan(self.value) or other is None:
            return not math.isnan(self.value)
        return self.value < other.value if mode == "min" else self.value > other.value


class CheckpointWriter(callbacks.Checkpoint):  # type: ignore[misc, name-defined]
    """Writes checkpoints: before the first step, after each validation, every ``every`` steps.

    Each is written between two batches, after everything before it was logged, and includes the
    state of the global random generators. The last two and the best are kept.

    Args:
        paths: The run's paths.
        resolved: The configuration; written when training begins, because a resume may be refused.
        monitor: The metric that decides which is best; None: the validation loss.
        mode: ``"min"`` or ``"max"``.
        every: Optimizer steps between checkpoints inside a chunk; None for none.
    """

    def __init__(
        self,
        paths: RunPaths,
        resolved: dict[str, Any],
        *,
        monitor: str | None,
        mode: str,
        every: int | None,
    ) -> None:
        self._resolved = resolved
        self.paths, self.monitor, self.mode, self.every = paths, monitor, mode, every
        self.best: Score | None = None
        self._random: dict[str, Any] = {}  # at the last optimizer step, or after validation
        self._steps = 0  # the optimizer step of `_random`
        self._accumulating = False  # batches were delivered since that are not in the weights
        self._saved = -1  # the step of the last checkpoint
        self._validated = -1  # the step of the last validation
        self._scores: list[str] = []  # the names of the metrics it logged
        self._restored = False
        self._warned = False  # whether the warning that nothing is monitored was logged
        self.began = False  # whether training began

    # -- what is in a checkpoint

    @property
    def state_key(self) -> str:
        """The name in checkpoints; the class's first name, so that older ones load."""
        return "Saving"

    def state_dict(self) -> dict[str, Any]:
        """Return what this callback adds to a checkpoint."""
        return {"best": asdict(self.best) if self.best else None, "random": self._random}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        best, self._random = state_dict["best"], state_dict["random"]
        self.best = Score(**best) if best else None
        self._restored = True

    # -- when

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Save before the first step, so that a run that cannot be saved fails at once."""
        self._steps = trainer.global_step
        check_optimizers(trainer.optimizers)
        if trainer.is_global_zero:
            self.paths.write_config(self._resolved)
        if self._restored:
            self._restore(trainer)
        else:
            self._note(trainer)
            self.save(trainer)
        self.began = True

    def _restore(self, trainer: Any) -> None:
        self._saved = step = trainer.global_step
        if self._random:
            files.restore_random_state(self._random)
        # a process may be killed after saving the best checkpoint, before linking it
        is_best, path = self.best and self.best.step == step, self.paths.checkpoint(step)
        if trainer.is_global_zero and is_best and path.exists():
            self.paths.keep_as_best(path)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Save if ``every`` steps are done, or if the weights were just validated."""
        step = trainer.global_step
        if self._validated == step:
            (self._save_best if self._accumulating else self.save)(trainer)
        elif self.every and step != self._saved and step - self._saved >= self.every:
            self.save(trainer)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Note the states of the generators if the optimizer stepped: later batches come again."""
        self._accumulating = trainer.global_step == self._steps
        self._note(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record that these weights were validated."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._validated = trainer.global_step
            self._scores = list(compat.epoch_metrics(trainer))
            self._note(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Note the random state again: hooks of a chunk's end may have drawn numbers."""
        self._note(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Save the chunk that ended, after its logs and schedulers."""
        if trainer.global_step != self._saved or self._validated == self._saved:
            self.save(trainer)

    on_train_end = on_train_epoch_start

    def _note(self, trainer: Any) -> None:
        """Note the random state, unless the batches since the last step will be repeated."""
        if not self._accumulating:
            self._random, self._steps = files.random_state(), trainer.global_step

    # -- saving

    def save(self, trainer: Any) -> None:
        """Write the checkpoint of this step, on all ranks together."""
        step = trainer.global_step
        is_best = self._validated == step and self._scored_best(trainer)
        path = self.paths.checkpoint(step)
        trainer.save_checkpoint(path, weights_only=False)  # with loops and optimizers
        self._saved, self._validated = step, -1
        if trainer.is_global_zero:
            if is_best:
                self.paths.keep_as_best(path)
            self.paths.remove_old()

    def _save_best(self, trainer: Any) -> None:
        """Save these weights as the best, if they are; a resume uses the checkpoint before.

        A resume repeats this validation together with the batches before it, so callbacks that
        already counted it must not be in a checkpoint to resume from.
        """
        self._validated = -1
        if trainer.strategy.broadcast(self._scored_best(trainer)):  # the scores of ranks may differ
            trainer.save_checkpoint(self.paths.best, weights_only=False)

    def _scored_best(self, trainer: Any) -> bool:
        score = self._score(trainer)
        if score is None:
            return False
        is_best = score.beats(self.best, self.mode)
        if is_best:
            self.best = score
        if trainer.is_global_zero:
            so_far = ", the best so far" if is_best else ""
            log.info("%s %.6g after step %d%s", score.metric, score.value, score.step, so_far)
        return is_best

    def _score(self, trainer: Any) -> Score | None:
        metrics = trainer.callback_metrics
        name = self.monitor or next((each for each in LOSSES if each in metrics), None)
        if name is not None and name in metrics:
            return Score(name, float(metrics[name]), trainer.global_step)
        if not self._warned:
            self._warned = True
            wanted = repr(self.monitor) if self.monitor else "a loss such as 'val/loss'"
            log.warning(
                "no best checkpoint is kept: validation logs %s, not %s; set "
                "train.monitor to one of these",
                *(", ".join(map(repr, self._scores)) or "nothing", wanted),
            )
        return None


class AtomicCheckpointIO(plugins.TorchCheckpointIO):  # type: ignore[misc, name-defined]
    """Lightning's checkpoint files, written atomically and read with every byte checked.

    A process killed at any moment leaves the old file or the new one. An object that could be saved
    but not loaded again (not tensors and plain values) is refused at the first checkpoint, which is
    written before the first step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._checked = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint to ``path``."""
        if not self._checked:
            files.check_loadable(checkpoint)
            self._checked = True
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        files.write_checkpoint(Path(path), checkpoint)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the checkpoint at ``path``, on the CPU."""
        return files.read_checkpoint(Path(path))


def mismatch_error(difference: str) -> ConfigError:
    """Return the error for a checkpoint that does not fit the configuration."""
    return ConfigError(
        f"the checkpoint does not fit this configuration: {difference}; resume with the "
        "model and optimizer it was trained with, or start in another run_dir"
    )


def check_optimizers(optimizers: Iterable[Any]) -> None:
    """Refuse optimizers that were restored from another kind: torch does not check this."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            missing = sorted(optimizer.defaults.keys() - group.keys())
            if missing:
                kind = type(optimizer).__name__
                raise mismatch_error(f"{kind} needs {missing[0]!r}, which the checkpoint lacks")


SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ONE_KEY_PRESS_SECONDS: Final = 1.0  # launchers forward a terminal's Ctrl-C a second time
WRITE_SECONDS: Final = 5.0  # at least, between two writes
WRITE_RATIO: Final = 300  # at least: the time between two writes, divided by the time of one


class RunEvents(callbacks.Callback):  # type: ignore[misc, name-defined]
    """Writes the figures of the training loader, and losses and scores of each chunk.

    The file is replaced every few seconds and at the end, so that a run in progress or a crashed
    one has it too. Its size is bounded, and writing takes less than a percent of the time. The file
    of a killed run has every chunk that has ended; its timeline, waiting and coverage are at most
    `WRITE_SECONDS` old, or `WRITE_RATIO` times as old as a write takes, if that is longer.

    Args:
        run_dir: The run's directory.
        chunked: The callback that has the loader and the coverage.
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
        self._chunks, self._loss, self._batches, self._trained = [], 0.0, 0, False
        self._environment = {}

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
        if not self._environment:  # the first write of a session
            self._number = next_session(self._run_dir, trainer.global_rank)
            self._environment = environment()
        loader.metrics.note_memory(tree_bytes())
        coverage = None
        with suppress(StateError):  # nothing was trained on yet
            coverage = self._chunked.coverage() if trainer.global_rank == 0 else None
        Session(
            self._number,
            state,
            loader.snapshot(),
            chunks=self._chunks,
            coverage=coverage,
            environment=self._environment,
        ).write(self._run_dir)
        now = perf_counter()
        self._next_write = now + max(WRITE_SECONDS, WRITE_RATIO * (now - begin))
        loader.metrics.pause()  # writing is not part of a step


def finite(value: Any) -> float | None:
    """Return a finite number; None for NaN and infinities, which JSON cannot hold."""
    return None if value is None or not math.isfinite(value) else float(value)


class StoppedBySignal(BaseException):
    """Training ended because of a signal; everything is saved.

    Not an `Exception`, so that user code does not catch it and continue.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class SignalListener:
    """Stores the signal that asked this process to stop.

    It is active only while there is training to save. Before and after, a signal ends the process
    directly: the process may wait in native code for another rank, where no handler runs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.received = 0
        self._clock, self._at = clock, 0.0
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; a second Ctrl-C exits at once."""
        now = self._clock()
        if self.received and number == signal.SIGINT and now - self._at > ONE_KEY_PRESS_SECONDS:
            os._exit(128 + number)  # safe: the last checkpoint is intact
        if not self.received:
            self.received, self._at = number, now
            name = signal.Signals(number).name
            log.warning("%s: saving after this batch, then exiting", name)

    def listen(self) -> None:
        """Install the handlers."""
        for number in SIGNALS:
            signal.signal(number, self.handle)

    def restore_handlers(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __enter__(self) -> SignalListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore_handlers()


class StopOnSignal(callbacks.Callback):  # type: ignore[misc, name-defined]
    """Ends training between two batches after a signal, on all ranks at the same batch.

    Args:
        listener: The signals of this process.
        save: Writes the checkpoint, on all ranks together.
    """

    def __init__(self, listener: SignalListener, save: Callable[[Any], object]) -> None:
        self._listener, self._save = listener, save
        self._listening = False
        self._group: Any = None  # of several ranks
        self._in_step = True  # validation has the same number of batches on every rank

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Remove the handler that Lightning just installed: it waits for a training step."""
        self._listener.restore_handlers()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Install our handlers instead of Lightning's."""
        self._listener.listen()
        self._listening = True
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")  # no rank waits for its device

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Stop before this batch, when the one before is completely logged."""
        self._stop_if_requested(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Stop before a validation; a resume runs it."""
        if self._listening and not trainer.sanity_checking:
            batches = sum(trainer.num_val_batches)
            number = -1 if batches == float("inf") else int(batches)
            self._in_step = self._largest(number, -number) == [number, -number]
            self._stop_if_requested(trainer)

    def on_validation_batch_start(self, trainer: Any, *_: Any) -> None:
        """Stop inside a validation; a resume runs it again from its start."""
        if not trainer.sanity_checking and self._in_step:
            self._stop_if_requested(trainer)

    def _stop_if_requested(self, trainer: Any) -> None:
        # a signal may reach one rank only, and all must leave at the same batch
        (number,) = self._largest(self._listener.received if self._listening else 0)
        if number:
            self._save(trainer)
            raise StoppedBySignal(number)

    def _largest(self, *numbers: int) -> list[int]:
        """Return the largest numbers of all ranks; every rank must call at the same step."""
        found = torch.tensor(numbers, dtype=torch.int64)
        if self._group is not None:
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return found.tolist()
