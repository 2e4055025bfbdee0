"""Building: the objects that a configuration describes."""

from penstock.training.build import heads, models, optimizing, registries, scores, tasks
from penstock.training.build.building import build
from penstock.training.build.job import Job
from penstock.training.build.module import TaskModule

__all__ = ["Job", "TaskModule", "build", "registries"]

_BUILT_IN = (heads, models, optimizing, scores, tasks)  # each registers its own
