"""What a value may be, in words and as a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.arguments import LARGEST_INTEGER


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: how it is called, and whether a value is one."""

    words: str
    fits: Callable[[Any], bool]

    def or_none(self) -> Kind:
        """The same, or nothing."""
        return Kind(f"{self.words}, or null", lambda value: value is None or self.fits(value))


def whole(least: int, unit: str = "") -> Kind:
    """A whole number, ``least`` or more.

    >>> whole(1, "batch").words, whole(1).fits(True), whole(1).fits(2)
    ('a whole number, at least 1 batch, at most 2**62', False, True)
    """
    return Kind(
        f"a whole number, at least {least} {unit}".rstrip() + ", at most 2**62",
        lambda value: is_int(value) and least <= value <= LARGEST_INTEGER,
    )


def one_of(*choices: str) -> Kind:
    """One of a few names."""
    return Kind(f"one of {', '.join(choices)}", lambda value: value in choices)


def is_int(value: Any) -> bool:
    """Is it an int, and not a truth value?"""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_limit(value: Any) -> bool:
    if isinstance(value, float):
        return 0.0 <= value <= 1.0
    return is_int(value) and 0 <= value <= LARGEST_INTEGER


INTEGER: Final = Kind(
    "a whole number, at most 2**62",
    lambda value: is_int(value) and abs(value) <= LARGEST_INTEGER,
)
NUMBER: Final = Kind(
    "a number, 0 or more and finite",
    lambda v: (is_int(v) or isinstance(v, float)) and 0 <= v <= LARGEST_INTEGER,
)
YES_OR_NO: Final = Kind("true or false", lambda value: isinstance(value, bool))
TEXT: Final = Kind("text", lambda value: isinstance(value, str))
LIMIT: Final = Kind("a number of batches, or a share of them from 0.0 to 1.0", _is_limit)
SECTION: Final = Kind("a section with keys of its own", lambda value: isinstance(value, Mapping))
NAMED: Final = Kind(
    "a name or a section with a _name_ or _target_",
    lambda value: isinstance(value, str | Mapping),
)
SEVERAL: Final = Kind(
    "a name, a section, or a list of those", lambda value: isinstance(value, str | Mapping | list)
)
NAMES: Final = Kind(
    "a list of module names",
    lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
)
