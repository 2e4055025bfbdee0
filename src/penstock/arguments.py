"""Checks of arguments, done where a value enters the library.

Each function returns the value in its plain Python type, or raises an error that names the
argument, the value found and what is accepted. ``bool`` is not an integer here: ``True`` passed
as a batch size is a mistake, not a 1.

>>> whole_number("batch_size", 32, minimum=1)
32
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from penstock.errors import PlanError

LARGEST_INTEGER = 2**62  # sizes, positions and steps fit into 64 bits with room to add two of them
T = TypeVar("T")


def whole_number(
    name: str,
    value: Any,
    *,
    minimum: int | None = None,
    maximum: int = LARGEST_INTEGER,
    unit: str = "",
    error: type[Exception] = PlanError,
) -> int:
    """Return ``value`` as an ``int``; numpy's integers are accepted, bools and floats are not.

    Args:
        name: The argument's name, as the caller spells it.
        value: What was passed.
        minimum: The smallest value accepted; None for no lower bound.
        maximum: The largest value accepted.
        unit: What is counted, singular, for the message: ``"sample"``.
        error: The class to raise.
    """
    if isinstance(value, bool | np.bool_):
        raise error(f"{name} must be an integer, got {value!r}, which is a bool")
    try:
        number = operator.index(value)
    except TypeError:
        found = type(value).__name__
        raise error(f"{name} must be an integer, got {value!r} ({found})") from None
    if minimum is not None and number < minimum:
        counted = f" {unit}{'' if minimum == 1 else 's'}" if unit else ""
        raise error(f"{name} must be at least {minimum}{counted}, got {number}")
    if number > maximum:
        raise error(f"{name} must be at most {maximum:,}, got {number}")
    return number


def real_number(
    name: str,
    value: Any,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    error: type[Exception] = PlanError,
) -> float:
    """Return ``value`` as a finite ``float``; bools, strings and NaN are refused.

    Args:
        name: The argument's name, as the caller spells it.
        value: What was passed.
        minimum: The smallest value accepted; None for no lower bound.
        maximum: The largest value accepted; None for no upper bound.
        error: The class to raise.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise error(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    number = float(value)
    if not math.isfinite(number):
        raise error(f"{name} must be finite, got {value!r}")
    if minimum is not None and number < minimum:
        raise error(f"{name} must be at least {minimum:g}, got {value!r}")
    if maximum is not None and number > maximum:
        raise error(f"{name} must be at most {maximum:g}, got {value!r}")
    return number


def flag(name: str, value: Any, *, error: type[Exception] = PlanError) -> bool:
    """Return ``value`` as a ``bool``; only ``True`` and ``False`` (also numpy's) are accepted."""
    if not isinstance(value, bool | np.bool_):
        raise error(f"{name} must be True or False, got {value!r}")
    return bool(value)


def choice(name: str, value: T, allowed: Collection[T], *, error: type[Exception] = PlanError) -> T:
    """Return ``value`` if it is one of ``allowed``."""
    if not any(type(value) is type(known) and value == known for known in allowed):
        options = ", ".join(repr(known) for known in allowed)
        raise error(f"{name} must be one of {options}, got {value!r}")
    return value


def function(name: str, value: T, *, error: type[Exception] = PlanError) -> T:
    """Return ``value`` if it is None or can be called."""
    if value is not None and not callable(value):
        raise error(f"{name} must be callable, got {value!r} ({type(value).__name__})")
    return value
