"""Running what a configuration says: a directory, a lock, checkpoints, signals, a summary."""

from penstock.training.run.dry_run import Forecast
from penstock.training.run.outcome import Outcome
from penstock.training.run.plan import plan_text, sample_text, skip_text, step_text
from penstock.training.run.signals import is_first_rank
from penstock.training.run.train import train

__all__ = [
    "Forecast",
    "Outcome",
    "is_first_rank",
    "plan_text",
    "sample_text",
    "skip_text",
    "step_text",
    "train",
]
