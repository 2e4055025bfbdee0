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
import os
import re
from collections.abc import Collection, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.registry import close_name

LARGEST_INTEGER = 2**62  # sizes, positions and steps fit into 64 bits with room to add two of them
LARGEST_SEED = 2**64 - 1
SHOWN_CHARACTERS = 120  # of a value in a message
UNITS = {
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
}  # decimal
T = TypeVar("T")


def shown(value: Any) -> str:
    """Return the text of ``value`` for a message: on one line, and cut if it is long.

    >>> shown("a"), shown([0] * 1000)[-10:], shown(10**5000)
    ("'a'", ', 0, 0,...', 'an int of 16610 bits')
    """
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python refuses to write out integers of thousands of digits
        size = f" of {value.bit_length()} bits" if isinstance(value, int) else ""
        return with_article(type(value).__name__) + size
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def with_article(noun: str) -> str:
    """Return a noun, such as the name of a type, with "a" or "an".

    >>> with_article("int"), with_article("Tensor"), with_article("uint8")
    ('an int', 'a Tensor', 'a uint8')
    """
    return f"{'an' if noun[:1] in 'AEIOaeio' else 'a'} {noun}"


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
        raise error(f"{name} must be an integer, got {shown(value)}, which is a bool")
    try:
        number = operator.index(value)
    except TypeError:
        found = type(value).__name__
        raise error(f"{name} must be an integer, got {shown(value)} ({found})") from None
    if minimum is not None and number < minimum:
        ending = "" if minimum == 1 else "es" if unit.endswith("tch") else "s"
        counted = f" {unit}{ending}" if unit else ""
        raise error(f"{name} must be at least {minimum}{counted}, got {shown(number)}")
    if number > maximum:
        raise error(f"{name} must be at most {maximum:,}, got {shown(number)}")
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
        raise error(f"{name} must be a number, got {shown(value)} ({type(value).__name__})")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise error(f"{name} must be finite, got {shown(value)}")
    if minimum is not None and number < minimum:
        raise error(f"{name} must be at least {minimum:g}, got {shown(value)}")
    if maximum is not None and number > maximum:
        raise error(f"{name} must be at most {maximum:g}, got {shown(value)}")
    return number


def flag(name: str, value: Any, *, error: type[Exception] = PlanError) -> bool:
    """Return ``value`` as a ``bool``; only ``True`` and ``False`` (also numpy's) are accepted."""
    if not isinstance(value, bool | np.bool_):
        raise error(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def choice(name: str, value: T, allowed: Collection[T], *, error: type[Exception] = PlanError) -> T:
    """Return ``value`` if it is in ``allowed``; otherwise raise an error with the closest one."""
    if not any(type(value) is type(known) and value == known for known in allowed):
        options = ", ".join(repr(known) for known in allowed)
        names = [known for known in allowed if isinstance(known, str)]
        near = close_name(value, names) if isinstance(value, str) else None
        meant = "" if near is None else f"; did you mean {near!r}?"
        raise error(f"{name} must be one of {options}, got {shown(value)}{meant}")
    return value


def instance(
    name: str,
    value: Any,
    kind: type[T],
    *,
    optional: bool = False,
    advice: str = "",
    error: type[Exception] = PlanError,
) -> None:
    """Raise an error unless ``value`` has the required type.

    Args:
        name: The argument's name, as the caller spells it.
        value: What was passed.
        kind: The type it must have.
        optional: Whether None is accepted too.
        advice: What to do; the message ends with it.
        error: The class to raise.
    """
    if not (isinstance(value, kind) or (optional and value is None)):
        advice = advice and f": {advice}"
        raise error(f"{name} must be {with_article(kind.__name__)}, got {shown(value)}{advice}")


def function(name: str, value: T, *, error: type[Exception] = PlanError) -> T:
    """Return ``value`` if it is None or can be called."""
    if value is not None and not callable(value):
        raise error(f"{name} must be callable, got {shown(value)} ({type(value).__name__})")
    return value


def array_of(name: str, value: Any, *, error: type[Exception] = PlanError) -> npt.NDArray[Any]:
    """Return ``value`` as an array of numbers or strings; ragged lists and objects are refused."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as problem:  # ragged, or on a device
        raise error(f"{name} must be an array, got {shown(value)}") from problem
    if array.dtype.kind not in "biufUS":
        raise error(f"{name} must be numbers or strings, got {shown(value)}")
    return array


def map_style(name: str, value: Any) -> Any:
    """Return ``value`` if it is a map-style dataset: not a path, a mapping or a class."""
    is_dataset = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    if not is_dataset or isinstance(value, str | bytes | Mapping | type):
        raise PlanError(
            f"{name} must be a map-style dataset (with a length, and samples by index), got "
            f"{shown(value)}"
        )
    return value


def text(name: str, value: Any, *, error: type[Exception] = PlanError) -> str:
    """Return ``value`` if it is a non-empty ``str``."""
    if not isinstance(value, str) or not value:
        raise error(f"{name} must be a non-empty str, got {shown(value)}")
    return str(value)


def a_path(name: str, value: Any, *, error: type[Exception] = PlanError) -> Path:
    """Return ``value`` as a `Path`; a ``str`` or an ``os.PathLike`` of one is accepted."""
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str) or not found or "\0" in found:
        raise error(f"{name} must be a path, got {shown(value)}")
    return Path(found)


def image_shape(name: str, value: Any, *, error: type[Exception] = PlanError) -> tuple[int, int]:
    """Return ``value`` as two sizes of at least 1."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise error(f"{name} must be two sizes, got {shown(value)}")
    first, second = (whole_number(name, each, minimum=1, error=error) for each in value)
    return first, second


def mapping(name: str, value: Any, *, error: type[Exception] = PlanError) -> dict[str, Any]:
    """Return ``value`` as a new ``dict``; its keys must be strings."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise error(f"{name} must be a mapping with string keys, got {shown(value)}")
    return dict(value)


# -- sizes in bytes, for people


def parse_bytes(size: int | str, name: str = "a size in bytes") -> int:
    """Return a number of bytes given as an int, or as a string such as ``"1GB"``, ``"256 MiB"``.

    Args:
        size: The number or the string.
        name: The argument's name, for messages.

    Raises:
        PlanError: ``size`` is neither, or is negative.

    >>> parse_bytes("1.5GB"), parse_bytes("64MiB"), parse_bytes(4096)
    (1500000000, 67108864, 4096)
    """
    if not isinstance(size, str):
        return whole_number(name, size, minimum=0)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", size.lower())
    if found is None:
        raise PlanError(
            f"{name} must be a number of bytes, or a string such as '1GB' or '64MiB', got {size!r}"
        )
    number, prefix, binary = found.groups()
    power = " kmgt".index(prefix or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def format_bytes(size: float) -> str:
    """Return a size with three digits and a unit.

    >>> format_bytes(1_500_000_000), format_bytes(512)
    ('1.5 GB', '512 B')
    """
    unit = _unit_of(size)
    return f"{size:.0f} B" if unit == "B" else f"{size / UNITS[unit]:.3g} {unit}"


def size_text(size: int) -> str:
    """Return a string for `parse_bytes` that allows ``size`` bytes and little more.

    >>> size_text(761_737_344), size_text(1_390_000_001), size_text(12)
    ('770MB', '1.4GB', '12B')
    """
    unit = _unit_of(size)
    if unit == "B":
        return f"{size}B"
    tenths = -(-10 * size // UNITS[unit])
    number = f"{tenths / 10:g}" if tenths < 100 else str(-(-tenths // 100) * 10)
    return f"{number}{unit}"


def _unit_of(size: float) -> str:
    return next((unit for unit, least in UNITS.items() if size >= least), "B")
