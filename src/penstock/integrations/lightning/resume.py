"""Lightning: what is in the weights, and how a checkpoint goes on from exactly there."""

from __future__ import annotations

import logging
from typing import Any

import torch

from penstock.extras import optional
from penstock.integrations.lightning.progress import Progress
from penstock.integrations.lightning.source import Rest, SteadySource
from penstock.loaders import Loader

log = logging.getLogger("penstock")

callbacks = optional("lightning.pytorch.callbacks", extra="lightning")

KEY = "penstock"  # in Lightning's checkpoints


class ExactResume(callbacks.Callback):  # type: ignore[misc, name-defined]
    """Notes what the weights have seen, and takes loaders and Lightning's counters there again.

    A checkpoint, taken anywhere, goes on at the first batch that is not in the weights: batches
    delivered but not yet stepped on (gradient accumulation) come again, a validation that was due
    is run, one that was run is not.
    """

    def __init__(self) -> None:
        self._training: Any = None
        self._validation: Any = None
        self._loader: Loader | None = None
        self._progress: Progress | None = None
        self._chunks = 0  # finished
        self._optimizer_steps = 0  # when progress was last noted
        self._validated = -1  # batches Lightning had run at the last validation
        self._unmoved: list[dict[str, Any]] | None = None  # validation's states before it began
        self._restored: dict[str, Any] = {}  # what the start of training still has to restore
        self._resuming = False  # nothing was trained since the checkpoint
        self._begins_elsewhere = False  # than where the checkpoint ends

    # -- loaders

    def _watch(self, training: SteadySource, validation: SteadySource) -> None:
        """Begin anew, with the sources of these loaders."""
        self._training, self._validation = training, validation
        self._loader, self._progress, self._unmoved = None, None, None
        self._restored, self._resuming, self._validated = {}, False, -1

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End what runs for the loaders, as Lightning does with torch's."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End what runs for the loaders; `teardown` is not called then."""
        self._close()

    def _close(self) -> None:
        for source in (self._training, self._validation):
            if source is not None:
                source.close()

    # -- what training did

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count from where Lightning counts."""
        self._chunks, self._optimizer_steps = trainer.current_epoch, trainer.global_step
        if self._loader is None:
            return
        if self._progress is None:
            loop = trainer.fit_loop
            self._progress = Progress(
                self._loader.state_dict(),
                chunks=self._chunks,
                batches=loop.total_batch_idx + 1,
                logged=loop.epoch_loop._batches_that_stepped,
            )
        metrics = self._restored.get("metrics", {})
        trainer.callback_metrics.update({k: torch.tensor(v) for k, v in metrics.items()})
        if self._restored.get("owes_plateau"):
            step_plateau_schedulers(trainer.fit_loop)
        self._restored = {}

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log on where the checkpoint did."""
        self._log_on(trainer)

    def _log_on(self, trainer: Any) -> None:
        if self._resuming and self._progress is not None:
            # Lightning counted the last step once more if a validation was due after it
            trainer.fit_loop.epoch_loop._batches_that_stepped = self._progress.logged
        self._resuming = False

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note what is in the weights, if the optimizer stepped."""
        self._note(trainer)

    def _note(self, trainer: Any) -> None:
        if self._loader is None or trainer.global_step == self._optimizer_steps:
            return
        self._optimizer_steps = trainer.global_step
        loop, state, ended = trainer.fit_loop, self._loader.state_dict(), trainer.is_last_batch
        if ended and state["position"] and self._loader.position.chunk is None:
            state |= {"epoch": state["epoch"] + 1, "position": 0}  # limit_train_batches cut it
        self._progress = Progress(
            state,
            chunks=self._chunks,
            batches=loop.total_batch_idx + 1,
            done=loop.batch_idx + 1,
            length=trainer.num_training_batches,
            ended=ended,
            logged=loop.epoch_loop._batches_that_stepped + 1,
        )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A chunk is finished, unless training stopped inside it."""
        if self._progress is None:
            return
        self._log_on(trainer)
        self._training.resumed = None
        # Lightning steps no plateau scheduler at the end of an epoch it restarted
        trainer.fit_loop._restarting = False
        if trainer.is_last_batch:
            self._chunks += 1
            if self._progress.ended:
                self._progress = self._progress.finished(self._chunks)

    # -- what validation did

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Remember where validation loaders that move were."""
        if trainer.state.fn != "fit":
            return
        self._unmoved = self._validation.places
        if self._resuming and self._progress is not None and not trainer.sanity_checking:
            # Lightning counts a step after its validation
            trainer.fit_loop.epoch_loop._batches_that_stepped = self._progress.logged - 1

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """Put validation loaders back where they were."""
        if self._unmoved is not None:
            self._validation.move(self._unmoved)
        self._unmoved = None

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """These weights are validated."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._validated, self._unmoved = trainer.fit_loop.total_batch_idx + 1, None

    # -- checkpoints

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Save how far the weights are, whatever was delivered since."""
        if self._progress is None:
            return
        self._note(trainer)
        epochs, progress = trainer.fit_loop.epoch_progress.current, self._progress
        checkpoint[KEY] = {
            "progress": progress.to_state(),
            "validated": self._validated == progress.batches,
            "validation": self._validation.places if self._unmoved is None else self._unmoved,
            "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()},
            "owes_plateau": epochs.processed > epochs.completed and not progress.done,
        }

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Restore the loader and Lightning's counters together."""
        if trainer.state.fn != "fit":
            return
        self._training.ask()
        if self._loader is None:
            return
        loops = checkpoint["loops"]["fit_loop"]
        states = loops["state_dict"].pop("combined_loader", [])
        self._restored = checkpoint.get(KEY, {})
        if self._restored:
            loops.update(self._restore(self._loader))
        else:
            self._adopt(self._loader, states)
        for loop in (trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop):
            loop._combined_loader = None  # set up before, by a strategy that restores late

    def _restore(self, loader: Loader) -> dict[str, Any]:
        validated, states = self._restored["validated"], self._restored["validation"]
        begin, progress = loader.state_dict(), Progress(**self._restored["progress"])
        if self._begins_elsewhere:
            progress = progress.moved(begin)
        self._progress = self._seek(loader, progress)
        self._resuming, self._validated = True, self._progress.batches if validated else -1
        if states:
            self._validation.move(states)
        return self._progress.counters(validated=validated)

    def _seek(self, loader: Loader, progress: Progress) -> Progress:
        loader.load_state_dict(progress.loader)
        if progress.ended:
            self._training.resumed = Rest(loader, progress.length, over=True)
        elif progress.done:
            length = len(loader)  # other than in the checkpoint, if its batches or chunks are
            progress = progress.regrouped(length - loader.remaining, length)
            self._training.resumed = loader if progress.done else None
        return progress

    def _adopt(self, loader: Loader, states: list[dict[str, Any]]) -> None:
        log.warning(
            "the checkpoint was written without ChunkedTraining: it goes on after the last batch "
            "delivered, and a chunk's validation that was due may be left out"
        )
        if states and not self._begins_elsewhere:
            loader.load_state_dict(states[0])
            self._training.resumed = loader if loader.remaining != len(loader) else None


def step_plateau_schedulers(fit_loop: Any) -> None:
    """The step of the epoch that just ended: a checkpoint written in its last hook lacks it."""
    epochs = fit_loop.epoch_progress.current
    epochs.completed -= 1  # schedulers count from it
    fit_loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    epochs.completed += 1
