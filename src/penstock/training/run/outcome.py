"""What became of a run, in numbers and in a few lines to read."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import StateError
from penstock.loaders.chunk_report import counted, counted_passes
from penstock.training.run.directory import RunPaths
from penstock.training.run.fitting import Fit
from penstock.training.run.rehearsal import Forecast
from penstock.training.run.saving import Score


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has seen, over all its sessions, and where it is kept.

    Args:
        run_dir: The run's directory.
        steps: Optimizer steps that are in the weights.
        chunks: Chunks that were finished; epochs of Lightning where there are none.
        samples: Samples trained on, over all ranks and passes; 0 where nobody knows.
        passes: How often the dataset was gone through.
        coverage: The share of the dataset that was seen at least once.
        best: The best score of a validation, if one was scored.
        best_path: Its checkpoint.
        last_path: The last checkpoint.
        stopped_by: The signal that ended it early; 0 if none did.
        reason: What ended it, if that was neither the passes nor the chunks asked for.
        forecast: What it would take, of a dry run.
    """

    run_dir: Path
    steps: int = 0
    chunks: int = 0
    samples: int = 0
    passes: float = 0.0
    coverage: float = 0.0
    best: Score | None = None
    best_path: Path | None = None
    last_path: Path | None = None
    stopped_by: int = 0
    reason: str = ""
    forecast: Forecast | None = None

    @property
    def exit_code(self) -> int:
        """0, or as a shell says which signal it was."""
        return 128 + self.stopped_by if self.stopped_by else 0

    def text(self) -> str:
        """A few lines to read."""
        if self.forecast is not None:
            return self.forecast.text()
        ended = f"stopped by {signal.Signals(self.stopped_by).name}" if self.stopped_by else "done"
        lines = [f"{ended} after {counted(self.steps, 'step')}, {counted(self.chunks, 'chunk')}"]
        if self.reason and not self.stopped_by:
            lines.append(f"  ended  by {self.reason}")
        if self.samples:
            lines.append(
                f"  seen   {counted(self.samples, 'sample')}, {counted_passes(self.passes)}, "
                f"{self.coverage:.2%} of the dataset"
            )
        if self.best is not None:
            best = f"{self.best.metric} {self.best.value:.6g} after step {self.best.step:,}"
            lines.append(f"  best   {best}: {self.best_path}")
        if self.last_path is not None:
            lines.append(f"  last   {self.last_path}")
        if self.stopped_by:
            lines.append("  go on with the same command and --resume")
        return "\n".join(lines)


def outcome_of(fit: Fit, paths: RunPaths, *, stopped_by: int) -> Outcome:
    """What is in the run directory now."""
    best, saved = fit.saving.best, paths.saved()
    return Outcome(
        paths.root,
        steps=fit.trainer.global_step,
        **seen_by(fit),
        best=best,
        best_path=paths.best if best else None,
        last_path=saved[0] if saved else None,
        stopped_by=stopped_by,
        reason=reason_of(fit.trainer),
    )


def reason_of(trainer: Any) -> str:
    """What ended training before all its chunks were done; nothing where nothing did."""
    if 0 <= trainer.max_steps <= trainer.global_step:
        return f"max_steps={trainer.max_steps}"
    for callback in trainer.early_stopping_callbacks:
        if callback.stopping_reason_message:
            said = " ".join(callback.stopping_reason_message.split()).rstrip(".")
            return f"early stopping: {said}"
    return ""


def seen_by(fit: Fit) -> dict[str, Any]:
    """What of the dataset is in the weights, as far as it is known."""
    try:
        summary = fit.chunked.summary()
    except StateError:  # a loader that is not ours, or nothing was left to train
        return {"chunks": fit.trainer.current_epoch}
    names = ("samples", "passes", "coverage", "chunks")
    return {name: getattr(summary, name) for name in names}
