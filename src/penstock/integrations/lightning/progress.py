"""How much of the data is in the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import torch

from penstock.integrations.lightning import compat
from penstock.loaders import Loader
from penstock.loaders.chunk_settings import ValidationInterval


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

    def regrouped(self, done: int, length: int) -> Self:
        """Return the same samples counted in batches or chunks of another size."""
        return replace(self, done=done, length=length)

    def to_state(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        return asdict(self)


class ValidationTiming:
    """Decides after which chunks to validate, by their number and the training loss.

    Args:
        interval: The fewest and the most chunks, and the change of the loss between.
    """

    def __init__(self, interval: ValidationInterval) -> None:
        self._interval = interval
        self.due = True  # the decision after the last chunk
        self._since = 0  # chunks since the last validation
        self._before: float | None = None  # the loss of the chunk that was validated last
        self._sum: Any = 0.0  # of the losses of this chunk; a tensor, so that nothing waits for it
        self._count = 0
        self._noted = 0.0, 0  # sum and count of the batches that are in the weights

    def add(self, loss: Any) -> None:
        """Add the loss of a batch."""
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._sum, self._count = self._sum + loss.detach(), self._count + 1

    def note(self) -> None:
        """Note that all batches so far are in the weights."""
        self._noted = self._sum, self._count

    def decide(self, trainer: Any) -> None:
        """Decide, after the last batch of a chunk; all ranks decide as rank 0 does."""
        loss = float(self._sum) / self._count if self._count else None
        due = self._interval.due(self._since + 1, loss, self._before)
        self.due = bool(trainer.strategy.broadcast(due))
        self._since, self._before = (0, loss) if self.due else (self._since + 1, self._before)
        self._sum, self._count = 0.0, 0
        self.note()

    def to_state(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        total, count = float(self._noted[0]), self._noted[1]
        state = {"due": self.due, "since": self._since, "before": self._before}
        return state | {"sum": total, "count": count}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.due, self._since, self._before = state["due"], state["since"], state["before"]
        self._sum, self._count = state["sum"], state["count"]
        self.note()


class ProgressTracker:
    """Follows a fit and notes the progress whenever the optimizer steps."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self._chunks = 0  # completed
        self._optimizer_steps = 0  # when the progress was last noted
        self._validated_batches = -1  # batches trained at the last validation

    def start(self, trainer: Any, loader: Loader | None) -> None:
        """Count from where Lightning's counters are."""
        self._chunks, self._optimizer_steps = trainer.current_epoch, trainer.global_step
        if loader is not None and self.progress is None:
            self.progress = Progress(
                loader.state_dict(),
                chunks=self._chunks,
                batches=trainer.fit_loop.total_batch_idx + 1,
                logged=compat.logged_steps(trainer),
            )

    def note(self, trainer: Any, loader: Loader | None) -> None:
        """Note the progress if the optimizer stepped since the last time."""
        if loader is None or trainer.global_step == self._optimizer_steps:
            return
        self._optimizer_steps = trainer.global_step
        loop, state, ended = trainer.fit_loop, loader.state_dict(), trainer.is_last_batch
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

    def end_chunk(self, trainer: Any) -> None:
        """Count a chunk, unless training stopped inside it."""
        if trainer.is_last_batch:
            self._chunks += 1
            if self.progress is not None and self.progress.ended:
                self.progress = self.progress.finished(self._chunks)

    def note_validation(self, trainer: Any) -> None:
        """Note that the current weights are validated."""
        self._validated_batches = trainer.fit_loop.total_batch_idx + 1

    @property
    def validated(self) -> bool:
        """Whether the weights of the noted progress were validated."""
        return self.progress is not None and self._validated_batches == self.progress.batches

    def restore(self, progress: Progress, *, validated: bool) -> None:
        """Continue from the progress of a checkpoint."""
        self.progress = progress
        self._validated_batches = progress.batches if validated else -1
