"""Running what a configuration says: a directory, a lock, checkpoints, signals, a summary."""

from penstock.training.running.outcome import Outcome
from penstock.training.running.planning import plan_text, step_text
from penstock.training.running.ranks import is_first_rank
from penstock.training.running.rehearsal import Forecast
from penstock.training.running.train import train

__all__ = ["Forecast", "Outcome", "is_first_rank", "plan_text", "step_text", "train"]
