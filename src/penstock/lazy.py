"""Names of a package that are imported from its modules when they are first used.

A program that streams a Zarr need not load the code of audio transforms or Arrow tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    The package imports the same names under ``TYPE_CHECKING``, for type checkers and editors.

    Args:
        package: Its ``__name__``.
        names: By module of the package, its public names, separated by spaces.

    >>> public, get, _ = lazy_names("json", {"decoder": "JSONDecoder"})
    >>> public, get("JSONDecoder").__name__
    (['JSONDecoder'], 'JSONDecoder')
    """
    home = {name: module for module, listed in names.items() for name in listed.split()}

    def __getattr__(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    return [*home], __getattr__, lambda: sorted(home)
