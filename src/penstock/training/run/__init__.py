"""Running a configuration: a directory, a lock, checkpoints, signals, and a summary."""

from penstock.training.run.plan import forecast as forecast
from penstock.training.run.plan import plan_text as plan_text
from penstock.training.run.plan import sample_text as sample_text
from penstock.training.run.plan import skip_text as skip_text
from penstock.training.run.plan import step_text as step_text
from penstock.training.run.train import Outcome as Outcome
from penstock.training.run.train import is_first_rank as is_first_rank
from penstock.training.run.train import train as train
