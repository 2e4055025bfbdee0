"""Configuration: YAML files composed by Hydra, then checked strictly."""

from penstock.training.config.settings import Settings as Settings
from penstock.training.config.settings import read_settings as read_settings
