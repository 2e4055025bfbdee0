"""Building: the objects that a configuration describes."""

from penstock.training.building import heads, models, optimizing, registries, scores, tasks
from penstock.training.building.building import build
from penstock.training.building.job import Job
from penstock.training.building.module import TaskModule

__all__ = ["Job", "TaskModule", "build", "registries"]

_BUILT_IN = (heads, models, optimizing, scores, tasks)  # each registers its own
