"""What a user sees of training in chunks: log lines, the progress bar, scores, and a summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, Final

import torch

from penstock.integrations.lightning import compat
from penstock.integrations.lightning.resume import Progress
from penstock.loaders import Loader, chunk_report
from penstock.loaders.chunk_settings import ValidationInterval
from penstock.order import Cursor


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


ROTATION_SUFFIX: Final = "_rotation"


class ProgressBar:
    """Lightning's progress bar with the chunk, the loss and the waiting time.

    Args:
        bar: A ``TQDMProgressBar``, a ``RichProgressBar`` or another one that shows ``get_metrics``;
            None shows nothing.
        items: Returns what to show; called whenever the bar is drawn.
    """

    def __init__(self, bar: Any, items: Callable[[], dict[str, str]]) -> None:
        enabled = isinstance(bar, compat.callbacks.ProgressBar)
        self._bar = bar if enabled and not getattr(bar, "is_disabled", False) else None
        self._items = items
        if self._bar is not None:
            self._bar.get_metrics = self._get_metrics  # documented by Lightning; this bar only

    def _get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        bar: Any = self._bar
        metrics: dict[str, Any] = type(bar).get_metrics(bar, trainer, pl_module)
        if isinstance(metrics.get("v_num"), str):
            del metrics["v_num"]  # Lightning cuts a version that is a name to its last letters
        items = self._items()
        if any("loss" in name.lower() for name in metrics):
            items.pop("loss", None)
        return items | metrics

    def show_title(self, title: str) -> None:
        """Show the chunk where Lightning shows its epoch."""
        compat.show_title(self._bar, title)

    def release(self) -> None:
        """Undo all changes of the bar."""
        if self._bar is not None:
            vars(self._bar).pop("get_metrics", None)
        self._bar = None


@dataclass(slots=True)
class BatchWaits:
    """Seconds that training waited for batches: in all, in this chunk, and for first batches.

    The very first batch, for which workers are started, counts only in the total.

    Args:
        before: The loader's own count when this one starts.

    >>> waits = BatchWaits()
    >>> for total, first in ((3.0, True), (3.5, False), (5.5, True)):
    ...     waits.add(total, first=first)
    >>> waits.total, waits.chunk_start, waits.other
    (5.5, 2.0, 0.5)
    """

    before: float = 0.0
    total: float = 0.0
    chunk: float = 0.0
    _starts: int = -1  # the very first batch is not counted
    _start_seconds: float = 0.0
    _others: int = 0
    _other_seconds: float = 0.0

    def add(self, waited_seconds: float, *, first: bool) -> None:
        """Count a batch that arrived.

        Args:
            waited_seconds: The loader's own count, over all batches.
            first: Whether the batch is the first of a chunk.
        """
        wait = waited_seconds - self.before - self.total
        self.total += wait
        self.chunk = wait if first else self.chunk + wait
        if first:
            self._starts += 1
            self._start_seconds += wait if self._starts else 0.0
        else:
            self._others += 1
            self._other_seconds += wait

    @property
    def chunk_start(self) -> float:
        """Mean seconds for the first batch of a chunk."""
        return self._start_seconds / max(1, self._starts)

    @property
    def other(self) -> float:
        """Mean seconds for any other batch."""
        return self._other_seconds / max(1, self._others)


@dataclass(slots=True)
class Rotation:
    """Mean scores over a rotation: several validations that together use all samples once.

    Its fields are plain numbers for a checkpoint.

    Args:
        sums: Of each score, times the samples of its validation.
        samples: Of the validations so far.
        whole: Whether this rotation was followed from its beginning.
        scores: Of the last whole rotation.

    >>> rotation = Rotation()
    >>> rotation.add({"val/loss": 1.0}, samples=3, begins=True, ended=False)
    {}
    >>> rotation.add({"val/loss": 2.0}, samples=1, begins=False, ended=True)
    {'val/loss_rotation': 1.25}
    """

    sums: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    whole: bool = True
    scores: dict[str, float] = field(default_factory=dict)

    def add(
        self, scores: Mapping[str, float], *, samples: int, begins: bool, ended: bool
    ) -> dict[str, float]:
        """Add a validation; returns the scores of the rotation if this was its end.

        A rotation that was not followed from its beginning has no scores.

        Args:
            scores: Scores of this validation.
            samples: Samples of this validation.
            begins: Whether it is the first of a rotation.
            ended: Whether it is the last of a rotation.
        """
        if begins:
            self.sums, self.samples, self.whole = {}, 0, True
        elif not self.samples:
            self.whole = False
        for name, score in scores.items():
            self.sums[name] = self.sums.get(name, 0.0) + samples * float(score)
        self.samples += samples
        if not ended or not self.whole:
            return {}
        sums, count = self.sums, self.samples
        self.scores = {name + ROTATION_SUFFIX: score / count for name, score in sums.items()}
        self.sums, self.samples = {}, 0
        return dict(self.scores)


class RunHistory:
    """The parts of the data that were trained on, over all sessions of a run.

    Args:
        restored: What `to_state` returned in the session before; empty in the first one.
        here: Where this session starts.
        elsewhere: Whether the session before ended at another position than ``here``.
        limit: Batches that Lightning uses of every pass; None for all.
    """

    def __init__(
        self, restored: Mapping[str, Any], here: Cursor, *, elsewhere: bool, limit: int | None
    ) -> None:
        self.begin = cursor_of(restored["begin"]) if "begin" in restored else here
        self._since = cursor_of(restored["since"]) if "since" in restored else self.begin
        past = restored.get("past", ())
        self._past = [(Cursor(*one), Cursor(*other)) for one, other in past]
        if elsewhere and restored:
            self._past.append((self._since, cursor_of(restored["progress"]["loader"])))
            self._since = here
        self._limit = limit

    def to_state(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        return {
            "begin": asdict(self.begin),
            "since": asdict(self._since),
            "past": [[astuple(one), astuple(other)] for one, other in self._past],
        }

    def seen(self, progress: Progress) -> list[chunk_report.Stretch]:
        """Return what was trained on so far."""
        return [*self._past, (self._since, cursor_of(progress.loader))]

    def coverage(self, loader: Loader, progress: Progress) -> dict[str, Any]:
        """Return what was trained on so far, as numbers for a picture."""
        return chunk_report.coverage_map(loader.plan, self.seen(progress), self._limit)

    def summary(
        self, loader: Loader, progress: Progress, waits: BatchWaits
    ) -> chunk_report.ChunkSummary:
        """Return what was trained on so far, and how long this session waited."""
        plan, seen = loader.plan, self.seen(progress)
        samples = sum(chunk_report.samples_between(plan, *each, self._limit) for each in seen)
        return chunk_report.ChunkSummary(
            samples,
            passes=samples / chunk_report.samples_of_pass(plan.steps),
            coverage=chunk_report.coverage_of(plan, seen, self._limit),
            chunks=progress.chunks,
            waiting_seconds=waits.total,
            chunk_start_seconds=waits.chunk_start,
            batch_seconds=waits.other,
        )


def cursor_of(state: Mapping[str, Any]) -> Cursor:
    """Return the position in a loader's state."""
    return Cursor(state["epoch"], state["position"])
