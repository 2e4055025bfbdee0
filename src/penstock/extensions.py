"""Find what installed packages add to the core, by the entry points of Python packaging.

Penstock's own domains are found in the same way, so that the core imports none of them:

- ``penstock.sources``: source classes with a static method ``accepts(path) -> bool``
- ``penstock.datasets``: modules that register sequence datasets when they are imported
- ``penstock.commands``: functions that are added to the command line
"""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any


def load_extensions(group: str) -> dict[str, Any]:
    """Return the objects of a group by name; those whose module was removed are left out."""
    found = {entry.name: entry for entry in entry_points(group=group)}
    return {name: entry.load() for name, entry in sorted(found.items()) if _exists(entry.module)}


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False
