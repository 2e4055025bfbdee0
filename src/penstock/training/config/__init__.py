"""Configuration: YAML composed by Hydra, then checked strictly."""

from penstock.training.config.reading import read_settings
from penstock.training.config.record import Settings, TrainSettings

__all__ = ["Settings", "TrainSettings", "read_settings"]
