"""When a run is saved, and which of its checkpoints is the best."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass
from typing import Any, Final

from penstock.extras import optional
from penstock.training.random_state import random_state, restore_random_state
from penstock.training.run.directory import RunPaths
from penstock.training.run.restoring import check_optimizers

log = logging.getLogger("penstock")

callbacks = optional("lightning.pytorch.callbacks", extra="train")

LOSSES: Final = ("val/loss", "val_loss", "valid/loss", "validation/loss")


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of a validation, and the step it was measured after."""

    metric: str
    value: float
    step: int

    def beats(self, other: Score | None, mode: str) -> bool:
        """Is it better? A score that is no number never is.

        >>> Score("val/loss", 0.2, 9).beats(Score("val/loss", 0.3, 4), "min")
        True
        >>> Score("val/loss", math.nan, 9).beats(None, "min")
        False
        """
        if math.isnan(self.value):
            return False
        if other is None:
            return True
        return self.value < other.value if mode == "min" else self.value > other.value


class Saving(callbacks.Checkpoint):  # type: ignore[misc, name-defined]
    """Checkpoints of a run: before the first step, after every validation, every so many steps.

    Each is written between two batches, when all that was logged before is logged, and holds the
    places of the global random generators too. The last two are kept, and the best.

    Args:
        paths: Where the run is.
        resolved: The configuration, written there once training begins: a resume may be refused.
        monitor: The metric that decides which is best; by default the validation's loss.
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
        self._steps = 0  # when that was
        self._accumulating = False  # batches were delivered since that are not in the weights
        self._saved = -1  # the step of the last checkpoint
        self._validated = -1  # the step of the last validation
        self._scores: list[str] = []  # what that logged
        self._restored = False
        self._told = False  # that nothing is monitored
        self.began = False  # training did

    # -- what is in a checkpoint

    def state_dict(self) -> dict[str, Any]:
        """What this adds to a checkpoint."""
        return {"best": asdict(self.best) if self.best else None, "random": self._random}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on as that checkpoint was."""
        best, self._random = state_dict["best"], state_dict["random"]
        self.best = Score(**best) if best else None
        self._restored = True

    # -- when

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Save before the first step: a run that cannot be saved fails here, not hours later."""
        self._steps = trainer.global_step
        check_optimizers(trainer.optimizers)
        if trainer.is_global_zero:
            self.paths.write_config(self._resolved)
        if self._restored:
            self._go_on(trainer)
        else:
            self._note(trainer)
            self.save(trainer)
        self.began = True

    def _go_on(self, trainer: Any) -> None:
        self._saved = trainer.global_step
        if self._random:
            restore_random_state(self._random)
        self._mend_best(trainer)

    def _mend_best(self, trainer: Any) -> None:
        """The process may have been killed between a checkpoint and its being the best."""
        step = trainer.global_step
        path = self.paths.checkpoint(step)
        is_best = self.best is not None and self.best.step == step
        if trainer.is_global_zero and is_best and path.exists():
            self.paths.keep_as_best(path)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if so many steps were done since, or if the weights were just validated."""
        step = trainer.global_step
        if self._validated == step:
            (self._save_best if self._accumulating else self.save)(trainer)
        elif self.every and step != self._saved and step - self._saved >= self.every:
            self.save(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note where the generators are, if the optimizer stepped: batches since come again."""
        self._accumulating = trainer.global_step == self._steps
        self._note(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """These weights have a score."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._validated = trainer.global_step
            self._scores = list(trainer._results.metrics(on_step=False)["callback"])
            self._note(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Hooks of a chunk's end may have drawn."""
        self._note(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Save the chunk that ended, all its logs and schedulers behind it."""
        self._save_what_is_new(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the end."""
        self._save_what_is_new(trainer)

    def _save_what_is_new(self, trainer: Any) -> None:
        if trainer.global_step != self._saved or self._validated == self._saved:
            self.save(trainer)

    def _note(self, trainer: Any) -> None:
        """Where the generators are, unless batches that they drew for come again."""
        if not self._accumulating:
            self._random, self._steps = random_state(), trainer.global_step

    # -- saving

    def save(self, trainer: Any) -> None:
        """Write the checkpoint of this step, on all ranks together."""
        step = trainer.global_step
        is_best = self._validated == step and self._scored_best(trainer)
        path = self.paths.checkpoint(step)
        trainer.save_checkpoint(path, weights_only=False)  # "only" as in: not the loops
        self._saved, self._validated = step, -1
        if trainer.is_global_zero:
            if is_best:
                self.paths.keep_as_best(path)
            self.paths.forget_old()

    def _save_best(self, trainer: Any) -> None:
        """Keep these weights if they are the best; the run goes on from the checkpoint before.

        The validation comes again with the batches before it: callbacks that counted it may not be
        in a checkpoint to resume.
        """
        self._validated = -1
        if trainer.strategy.broadcast(self._scored_best(trainer)):  # ranks may score otherwise
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
        if not self._told:
            self._told = True
            wanted = repr(self.monitor) if self.monitor else "a loss such as 'val/loss'"
            log.warning(
                "no best checkpoint is kept: validation logs %s, not %s; name one in train.monitor",
                *(", ".join(map(repr, self._scores)) or "nothing", wanted),
            )
        return None
