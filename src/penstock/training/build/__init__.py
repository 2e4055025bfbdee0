"""Building the objects that a configuration describes."""

from penstock.training.build import layers, registries, tasks
from penstock.training.build.job import Job, build
from penstock.training.build.module import TaskModule

__all__ = ["Job", "TaskModule", "build", "registries"]

_BUILT_IN = (layers, tasks)  # imported so that they register their names
