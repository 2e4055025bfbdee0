"""Building: the objects that a configuration describes."""

from penstock.training.building.building import build
from penstock.training.building.job import Job

__all__ = ["Job", "build"]
