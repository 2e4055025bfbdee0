"""Configuration: YAML composed by Hydra, then checked strictly."""

from penstock.training.settings.reading import read_settings
from penstock.training.settings.record import Settings, TrainSettings

__all__ = ["Settings", "TrainSettings", "read_settings"]
