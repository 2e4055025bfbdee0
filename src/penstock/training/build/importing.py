"""The user's own modules: found beside the configuration as well as where Python looks."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from penstock.errors import ConfigError
from penstock.training.config import Settings


def import_users(settings: Settings) -> None:
    """Import what ``imports`` names, so that it can register models and datasets by name.

    Modules are looked for where Python looks, then in the working folder, beside the
    configuration, and beside its tree; for good, since workers import them again by name.
    """
    folders = (Path.cwd(), settings.path.parent, settings.root, settings.root.parent)
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.append(folder)  # last: nothing that is installed is hidden
    for number, name in enumerate(settings.imports):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # it is there, and needs something that is not
            raise ConfigError(
                f"imports[{number}] ({settings.where('imports')}): there is no module {name!r} "
                f"where Python looks, nor beside {settings.path.name}"
            ) from error
