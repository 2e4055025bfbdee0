"""Checkpoints that resume at the first batch that is not in the weights."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

import torch

from penstock.integrations.lightning import compat
from penstock.integrations.lightning.fit_loaders import FitLoaders
from penstock.integrations.lightning.loaders import RestOfChunk
from penstock.loaders import Loader

log = logging.getLogger("penstock")

KEY: Final = "penstock"  # in Lightning's checkpoints


@dataclass(frozen=True, slots=True)
class Progress:
    """The batches that are in the weights, as of an optimizer step.

    A batch that was delivered but not yet used in a step (gradient accumulation) is not included.

    Args:
        loader: The state of the loader after the last of these batches.
        chunks: Completed chunks, their end hooks included.
        batches: Batches in the weights, over all chunks.
        done: Batches in the weights of the current chunk.
        length: Batches of the current chunk.
        ended: All batches of the chunk are done; its validation and end hooks may not be.
        logged: Lightning's step for loggers.
    """

    loader: dict[str, Any]
    chunks: int = 0
    batches: int = 0
    done: int = 0
    length: int = 0
    ended: bool = False
    logged: int = 0

    def finished(self, chunks: int) -> Self:
        """Return the same batches after the end hooks of the chunk."""
        return replace(self, chunks=chunks, done=0, length=0, ended=False)

    def moved(self, loader: dict[str, Any]) -> Self:
        """Return the same batches between chunks; the next chunk starts at the state ``loader``."""
        return replace(self.finished(self.chunks + bool(self.done)), loader=loader)


class ExactResume:
    """Follows a fit, saves its progress in checkpoints, and restores loaders and counters from it.

    The progress is noted whenever the optimizer steps: batches that were delivered but not used in
    a step (gradient accumulation) are delivered again. A validation that was due is run; one that
    was run is not repeated.

    Args:
        loaders: The loaders of the fit.
    """

    def __init__(self, loaders: FitLoaders) -> None:
        self._loaders = loaders
        self.progress: Progress | None = None
        self.restored: dict[str, Any] = {}  # from the checkpoint, until training starts
        self.validation_states: list[dict[str, Any]] | None = None  # before a running validation
        self._resuming = False  # nothing was trained since the checkpoint
        self._chunks = 0  # completed
        self._optimizer_steps = 0  # when the progress was last noted
        self._validated_batches = -1  # batches trained at the last validation

    # -- training

    def start(self, trainer: Any, loader: Loader) -> Progress:
        """Count from where Lightning's counters are, and restore what could not be until now."""
        self._chunks, self._optimizer_steps = trainer.current_epoch, trainer.global_step
        if self.progress is None:
            self.progress = Progress(
                loader.state_dict(),
                chunks=self._chunks,
                batches=trainer.fit_loop.total_batch_idx + 1,
                logged=compat.logged_steps(trainer),
            )
        metrics = self.restored.get("metrics", {})
        trainer.callback_metrics.update({k: torch.tensor(v) for k, v in metrics.items()})
        if self.restored.get("owes_plateau"):
            compat.step_plateau_schedulers(trainer)
        self.restored = {}
        return self.progress

    def note(self, trainer: Any) -> bool:
        """Note the progress if the optimizer stepped since the last time; return whether it did."""
        loader, loop = self._loaders.loader, trainer.fit_loop
        if loader is None or trainer.global_step == self._optimizer_steps:
            return False
        self._optimizer_steps = trainer.global_step
        state, ended = loader.state_dict(), trainer.is_last_batch
        if ended and state["position"] and loader.position.chunk is None:
            # limit_train_batches ended the epoch early: the next one starts at its beginning
            state |= {"epoch": state["epoch"] + 1, "position": 0}
        self.progress = Progress(
            state,
            chunks=self._chunks,
            batches=loop.total_batch_idx + 1,
            done=loop.batch_idx + 1,
            length=trainer.num_training_batches,
            ended=ended,
            logged=compat.logged_steps(trainer) + 1,
        )
        return True

    def correct_logged_steps(self, trainer: Any) -> None:
        """Continue the step of loggers where the checkpoint was."""
        if self._resuming and self.progress is not None:
            # Lightning counts the last step once more if a validation was due after it
            compat.set_logged_steps(trainer, self.progress.logged)
        self._resuming = False

    def end_chunk(self, trainer: Any) -> None:
        """Count a chunk, unless training stopped inside it, and continue with whole chunks."""
        if self.progress is None:
            return
        self.correct_logged_steps(trainer)
        self._loaders.training.resumed = None
        compat.end_restart(trainer)
        if trainer.is_last_batch:
            self._chunks += 1
            if self.progress.ended:
                self.progress = self.progress.finished(self._chunks)

    # -- validation

    def begin_validation(self, trainer: Any) -> None:
        """Remember the position of validation loaders that move."""
        self.validation_states = self._loaders.validation.states()
        if self._resuming and self.progress is not None and not trainer.sanity_checking:
            # Lightning counts a step after its validation
            compat.set_logged_steps(trainer, self.progress.logged - 1)

    def undo_validation(self) -> None:
        """Move validation loaders back to where they were before a sanity check."""
        if self.validation_states is not None:
            self._loaders.validation.load_states(self.validation_states)
        self.validation_states = None

    def end_validation(self, trainer: Any) -> None:
        """Note that the current weights are validated."""
        self._validated_batches = trainer.fit_loop.total_batch_idx + 1
        self.validation_states = None

    # -- checkpoints

    def save(self, trainer: Any) -> dict[str, Any] | None:
        """Return what a checkpoint has to contain; None before there is any progress."""
        if self.progress is None:
            return None
        self.note(trainer)
        epochs, states = trainer.fit_loop.epoch_progress.current, self.validation_states
        return {
            "progress": asdict(self.progress),
            "validated": self._validated_batches == self.progress.batches,
            "validation": self._loaders.validation.states() if states is None else states,
            "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()},
            "owes_plateau": epochs.processed > epochs.completed and not self.progress.done,
        }

    def load(self, trainer: Any, checkpoint: dict[str, Any]) -> None:
        """Restore the loaders, and change the checkpoint so that Lightning's counters agree."""
        self._loaders.training.request()
        if self._loaders.loader is None:
            return
        states = compat.remove_loader_states(checkpoint)
        self.restored = checkpoint.get(KEY, {})
        if self.restored:
            self._restore(self._loaders.loader, checkpoint)
        else:
            self._adopt(self._loaders.loader, states)
        compat.forget_combined_loaders(trainer)

    def _restore(self, loader: Loader, checkpoint: dict[str, Any]) -> None:
        validated, states = self.restored["validated"], self.restored["validation"]
        progress = Progress(**self.restored["progress"])
        if self._loaders.starts_at_chunk:
            progress = progress.moved(loader.state_dict())
        self.progress = progress = self._seek(loader, progress)
        self._validated_batches = progress.batches if validated else -1
        self._resuming = True
        if states:
            self._loaders.validation.load_states(states)
        compat.set_fit_counters(checkpoint, progress, validated=validated)

    def _seek(self, loader: Loader, progress: Progress) -> Progress:
        loader.load_state_dict(progress.loader)
        if progress.ended:
            self._loaders.training.resumed = RestOfChunk(loader, progress.length, ended=True)
        elif progress.done:
            length = len(loader)  # differs from the checkpoint's if a batch or chunk size changed
            progress = replace(progress, done=length - loader.remaining, length=length)
            self._loaders.training.resumed = loader if progress.done else None
        return progress

    def _adopt(self, loader: Loader, states: list[dict[str, Any]]) -> None:
        log.warning(
            "the checkpoint was written without ChunkedTraining: training continues after the last "
            "batch delivered, which an optimizer step may not have reached yet, and a validation "
            "that was due may be skipped"
        )
        if states and not self._loaders.starts_at_chunk:
            loader.load_state_dict(states[0])
            started = loader.remaining != len(loader)
            self._loaders.training.resumed = loader if started else None
