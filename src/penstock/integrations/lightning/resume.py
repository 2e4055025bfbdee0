"""Checkpoints that resume at the first batch that is not in the weights."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import Any, Final

import torch

from penstock.integrations.lightning import compat
from penstock.integrations.lightning.fit_loaders import FitLoaders
from penstock.integrations.lightning.loaders import RestOfChunk
from penstock.integrations.lightning.reporting import Progress, ProgressTracker
from penstock.loaders import Loader

log = logging.getLogger("penstock")

KEY: Final = "penstock"  # in Lightning's checkpoints


class ExactResume:
    """Saves the progress in checkpoints, and restores loaders and Lightning's counters from it.

    Batches that were delivered but not used in an optimizer step (gradient accumulation) are
    delivered again. A validation that was due is run; one that was run is not repeated.

    Args:
        loaders: The loaders of the fit.
        tracker: The progress of the fit.
    """

    def __init__(self, loaders: FitLoaders, tracker: ProgressTracker) -> None:
        self._loaders, self._tracker = loaders, tracker
        self.restored: dict[str, Any] = {}  # from the checkpoint, until training starts
        self.validation_states: list[dict[str, Any]] | None = None  # before a running validation
        self._resuming = False  # nothing was trained since the checkpoint

    def start(self, trainer: Any) -> None:
        """Restore what can only be restored when training starts."""
        metrics = self.restored.get("metrics", {})
        trainer.callback_metrics.update({k: torch.tensor(v) for k, v in metrics.items()})
        if self.restored.get("owes_plateau"):
            compat.step_plateau_schedulers(trainer)
        self.restored = {}

    def correct_logged_steps(self, trainer: Any) -> None:
        """Continue the step of loggers where the checkpoint was."""
        progress = self._tracker.progress
        if self._resuming and progress is not None:
            # Lightning counts the last step once more if a validation was due after it
            compat.set_logged_steps(trainer, progress.logged)
        self._resuming = False

    def end_chunk(self, trainer: Any) -> None:
        """Continue with whole chunks after a resumed one."""
        self.correct_logged_steps(trainer)
        self._loaders.training.resumed = None
        compat.end_restart(trainer)

    # -- validation

    def begin_validation(self, trainer: Any) -> None:
        """Remember the position of validation loaders that move."""
        self.validation_states = self._loaders.validation.states()
        progress = self._tracker.progress
        if self._resuming and progress is not None and not trainer.sanity_checking:
            # Lightning counts a step after its validation
            compat.set_logged_steps(trainer, progress.logged - 1)

    def undo_validation(self) -> None:
        """Move validation loaders back to where they were before a sanity check."""
        if self.validation_states is not None:
            self._loaders.validation.load_states(self.validation_states)
        self.validation_states = None

    # -- checkpoints

    def save(self, trainer: Any) -> dict[str, Any]:
        """Return what a checkpoint has to contain."""
        progress = self._tracker.progress
        assert progress is not None
        epochs, states = trainer.fit_loop.epoch_progress.current, self.validation_states
        return {
            "progress": asdict(progress),
            "validated": self._tracker.validated,
            "validation": self._loaders.validation.states() if states is None else states,
            "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()},
            "owes_plateau": epochs.processed > epochs.completed and not progress.done,
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
        begin, progress = loader.state_dict(), Progress(**self.restored["progress"])
        if self._loaders.starts_at_chunk:
            progress = progress.moved(begin)
        progress = self._seek(loader, progress)
        self._tracker.restore(progress, validated=validated)
        self._resuming = True
        if states:
            self._loaders.validation.load_states(states)
        compat.set_fit_counters(
            checkpoint,
            chunks=progress.chunks,
            batches=progress.batches,
            done=progress.done,
            ended=progress.ended,
            logged=progress.logged,
            validated=validated,
        )

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
            "batch delivered, and a validation that was due may be skipped"
        )
        if states and not self._loaders.starts_at_chunk:
            loader.load_state_dict(states[0])
            started = loader.remaining != len(loader)
            self._loaders.training.resumed = loader if started else None
