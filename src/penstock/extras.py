"""Optional libraries, imported where they are used, with an error that names the extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.errors import MissingExtraError


def optional(module: str, extra: str) -> Any:
    """The imported ``module``, or an error that says which extra installs it.

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
