"""Names of a package that are imported from its modules when they are first used.

A program that streams a Zarr need not load the code of audio transforms or Arrow tables. The names
are declared once, in the ``__init__.pyi`` of the package: type checkers, editors and `names_in`
read the same file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def names_in(package: str) -> dict[str, str]:
    """Return the names that a package's stub imports, each with the module that it is from.

    Args:
        package: Its ``__name__``.

    >>> names_in("penstock.loaders")["StreamLoader"]
    'penstock.loaders.stream'
    """
    stub = Path(sys.modules[package].__file__ or "").with_name("__init__.pyi").read_text()
    found = re.findall(r"^from (\S+) import \(?\s*(\w+) as \w+", stub, re.MULTILINE)
    return {name: module for module, name in found}


def lazy_names(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Its ``__name__``.
    """
    home = names_in(package)

    def __getattr__(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    return [*home], __getattr__, lambda: sorted(home)
