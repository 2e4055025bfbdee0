"""States of data modules and their loaders, checked before anything is done with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import StateError


def check_mapping(state_dict: Any, expected: str) -> None:
    """Refuse what is no state of that format.

    >>> check_mapping({"format": "other/1"}, "penstock-module/1")
    Traceback (most recent call last):
    ...
    penstock.errors.StateError: state_dict must have the format 'penstock-module/1', got 'other/1'
    """
    if not isinstance(state_dict, Mapping):
        kind = type(state_dict).__name__
        raise StateError(f"state_dict must be a dict that state_dict() returned, got {kind}")
    found = state_dict.get("format")
    if found != expected:
        raise StateError(f"state_dict must have the format {expected!r}, got {found!r}")
