"""What a command is given: a YAML file, and what to change in it."""

from __future__ import annotations

import logging
from pathlib import Path

from penstock.errors import ConfigError
from penstock.training.config import Settings, read_settings

log = logging.getLogger("penstock")


def given_settings(config: Path, overrides: list[str]) -> Settings:
    """The settings, their notes told."""
    for override in overrides:
        if not override.lstrip("+~").partition("=")[0].strip():
            raise ConfigError(f"what is to change is key=value, got {override!r}: name the key")
    settings = read_settings(config, overrides)
    for note in settings.notes:
        log.info("%s", note)
    return settings
