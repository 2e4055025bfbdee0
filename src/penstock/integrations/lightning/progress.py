"""How far training got, and Lightning's counters for going on from exactly there. Arithmetic."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Progress:
    """What is in the weights, as of an optimizer step.

    A batch that was delivered but not yet stepped on (gradient accumulation) is not in it.

    Args:
        loader: The state of the loader after the last of these batches.
        chunks: Chunks that are finished, their end hooks included.
        batches: Batches in the weights, over all chunks.
        done: Of them, those of the chunk that is not finished.
        length: Batches of that chunk.
        ended: All of them are done; its validation and its end hooks may not be.
        logged: Lightning's step count for loggers.
    """

    loader: dict[str, Any]
    chunks: int = 0
    batches: int = 0
    done: int = 0
    length: int = 0
    ended: bool = False
    logged: int = 0

    def finished(self, chunks: int) -> Self:
        """The same batches, with the chunk's end hooks behind them."""
        return replace(self, chunks=chunks, done=0, length=0, ended=False)

    def moved(self, loader: dict[str, Any]) -> Self:
        """The same batches, and between chunks: the next one begins where ``loader`` is."""
        chunks = self.chunks + bool(self.done)
        return replace(self, loader=loader, chunks=chunks, done=0, length=0, ended=False)

    def regrouped(self, done: int, length: int) -> Self:
        """The same batches, in chunks of another size, or in batches of another size."""
        return replace(self, done=done, length=length)

    def to_state(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        return asdict(self)

    def counters(self, *, validated: bool) -> dict[str, Any]:
        """What Lightning's fit loop restores, in order to go on right after these batches.

        All its ways to be interrupted are brought into two: between chunks (a new epoch begins),
        and inside one (the epoch was started, all counters of batches agree). A validation counts
        as interrupted unless ``validated``, and is then run where it is due.
        """
        epochs, evaluated = _everywhere(self.chunks), _everywhere(0)
        if self.done:
            epochs |= {"ready": self.chunks + 1, "started": self.chunks + 1}
            if not validated:
                evaluated |= {"ready": 1, "started": 1}
        return {
            "epoch_progress": {"total": epochs, "current": dict(epochs)},
            "epoch_loop.batch_progress": {
                "total": _everywhere(self.batches),
                "current": _everywhere(self.done),
                "is_last_batch": self.ended,
            },
            "epoch_loop.val_loop.batch_progress": {
                "total": evaluated,
                "current": _everywhere(0),
                "is_last_batch": False,
            },
            "epoch_loop.state_dict": {"_batches_that_stepped": self.logged},
        }


def _everywhere(count: int) -> dict[str, int]:
    return dict.fromkeys(("ready", "started", "processed", "completed"), count)
