"""Configuration: YAML files composed by Hydra, then checked strictly."""

from penstock.training.config.settings import Settings, TrainSettings, read_settings

__all__ = ["Settings", "TrainSettings", "read_settings"]
