"""Optional parts: libraries of the extras, and what installed packages add by entry points.

Penstock's own domains are found by entry points too, so that the core imports none of them:

- ``penstock.sources``: source classes with a static method ``accepts(path) -> bool``
- ``penstock.datasets``: modules that register sequence datasets when they are imported
- ``penstock.commands``: functions that are added to the command line
- ``penstock.converters``: objects with ``accepts(path)`` and ``convert(source, target)``, for
  `penstock convert`
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from penstock.errors import MissingExtraError


def optional(module: str, extra: str) -> Any:
    """Import and return ``module``; if it is missing, raise an error that names the extra.

    Args:
        module: Name of the module.
        extra: The extra of Penstock that installs it.

    >>> optional("json", extra="cli").dumps(1)
    '1'
    >>> optional("no_such_library", extra="zarr")
    Traceback (most recent call last):
    ...
    penstock.errors.MissingExtraError: no_such_library is not installed: pip install ...
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(
            f"{error.name} is not installed: pip install 'penstock[{extra}]'"
        ) from error


def load_extensions(group: str) -> dict[str, Any]:
    """Return the objects of a group by name; those whose module was removed are left out."""
    found = {entry.name: entry for entry in entry_points(group=group)}
    return {name: entry.load() for name, entry in sorted(found.items()) if _exists(entry.module)}


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False
