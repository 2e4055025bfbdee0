"""What a user sees of training in chunks: log lines, the progress bar, scores, and a summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, Final

from penstock.integrations.lightning import compat
from penstock.integrations.lightning.progress import Progress
from penstock.loaders import Loader
from penstock.loaders.chunk_report import (
    ChunkSummary,
    Stretch,
    coverage_map,
    coverage_of,
    describe_chunks,
    describe_length,
    describe_validation,
    samples_between,
    samples_of_pass,
)
from penstock.loaders.chunk_schedule import ChunkProgress
from penstock.loaders.chunk_settings import ChunkSizes
from penstock.order import Cursor, Plan

ROTATION_SUFFIX: Final = "_rotation"


def describe_fit(
    sizes: ChunkSizes,
    plan: Plan | None,
    *,
    validation_batches: Sequence[int | None],
    whole_validation: int | None,
    rotates: bool,
    ignored: Mapping[str, str],
    epochs: int | None,
    passes: int | None,
    schedule: ChunkProgress | None = None,
) -> str:
    """Return a few lines for the log: what a chunk is, what a validation is, how long training is.

    Args:
        sizes: The chunk sizes.
        plan: The plan of the training loader; None if it is not of Penstock.
        validation_batches: The length of every validation loader; None if unknown.
        whole_validation: Batches of the whole validation partition; None if unknown.
        rotates: Whether every validation uses other samples.
        ignored: Settings of the Trainer that have no effect, as text by their names.
        epochs: ``max_epochs`` of the Trainer.
        passes: Passes after which training ends.
        schedule: Chunk sizes that change; None if all are equal.
    """
    lines: list[str | None] = []
    if plan is not None:
        chunks = describe_chunks(plan.steps, ignored.get("limit_train_batches"))
        lines += [
            chunks if schedule is None else f"chunked: {schedule.schedule}",
            f"order: {plan.order.kind}, seed {plan.order.seed}",
        ]
    else:
        size = sizes.train if sizes.train is not None else "an unknown number of"
        lines.append(f"chunked: training is left to its own loader, {size} batches an epoch")
    if any(batches != 0 for batches in validation_batches):
        which = "others each time, all of them in turn" if rotates else "the same ones each time"
        limit = ignored.get("limit_val_batches")
        lines.append(describe_validation(sizes.val, whole_validation, which, limit))
    else:
        lines.append("validation: none")
    if schedule is None:
        lines.append(describe_length(epochs, passes, None if plan is None else plan.steps))
    return "\n".join(line for line in lines if line)


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


class Rotation:
    """Mean scores over a rotation: several validations that together use all samples once.

    >>> rotation = Rotation()
    >>> rotation.add({"val/loss": 1.0}, samples=3, begins=True, ended=False)
    {}
    >>> rotation.add({"val/loss": 2.0}, samples=1, begins=False, ended=True)
    {'val/loss_rotation': 1.25}
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._samples = 0
        self._whole = True  # this rotation was followed from its beginning
        self.scores: dict[str, float] = {}  # of the last whole rotation

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
            self._sums, self._samples, self._whole = {}, 0, True
        elif not self._samples:
            self._whole = False
        for name, score in scores.items():
            self._sums[name] = self._sums.get(name, 0.0) + samples * float(score)
        self._samples += samples
        if not ended or not self._whole:
            return {}
        self.scores = {
            name + ROTATION_SUFFIX: score / self._samples for name, score in self._sums.items()
        }
        self._sums, self._samples = {}, 0
        return dict(self.scores)

    def to_state(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        return {
            "sums": dict(self._sums),
            "samples": self._samples,
            "whole": self._whole,
            "scores": dict(self.scores),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._sums, self._samples = dict(state["sums"]), state["samples"]
        self._whole, self.scores = state["whole"], dict(state["scores"])


class RunHistory:
    """The parts of the data that were trained on, over all sessions of a run.

    Args:
        restored: What `to_state` returned in the session before; empty in the first one.
        here: Where this session starts.
        elsewhere: Whether ``here`` is not where the session before ended.
        limit: Batches that Lightning uses of every pass; None for all.
    """

    def __init__(
        self, restored: Mapping[str, Any], here: Cursor, *, elsewhere: bool, limit: int | None
    ) -> None:
        self.begin = cursor_of(restored["begin"]) if "begin" in restored else here
        self._since = cursor_of(restored["since"]) if "since" in restored else self.begin
        self._past: list[Stretch] = [
            (Cursor(*one), Cursor(*other)) for one, other in restored.get("past", ())
        ]
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

    def seen(self, progress: Progress) -> list[Stretch]:
        """Return what was trained on so far."""
        return [*self._past, (self._since, cursor_of(progress.loader))]

    def coverage(self, loader: Loader, progress: Progress) -> dict[str, Any]:
        """Return what was trained on so far, as numbers for a picture."""
        return coverage_map(loader.plan, self.seen(progress), self._limit)

    def summary(self, loader: Loader, progress: Progress, waits: BatchWaits) -> ChunkSummary:
        """Return what was trained on so far, and how long this session waited."""
        plan, seen = loader.plan, self.seen(progress)
        samples = sum(samples_between(plan, *each, self._limit) for each in seen)
        return ChunkSummary(
            samples,
            passes=samples / samples_of_pass(plan.steps),
            coverage=coverage_of(plan, seen, self._limit),
            chunks=progress.chunks,
            waiting_seconds=waits.total,
            chunk_start_seconds=waits.chunk_start,
            batch_seconds=waits.other,
        )


def cursor_of(state: Mapping[str, Any]) -> Cursor:
    """Return the position in a loader's state."""
    return Cursor(state["epoch"], state["position"])
