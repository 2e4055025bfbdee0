"""Sizes in bytes, as people write and read them.

Prefixes are decimal (1 kB is 1000 bytes), as disks and networks are sold; ``KiB``, ``MiB``, ... are
accepted as input.
"""

from __future__ import annotations

import re

from penstock.arguments import whole_number
from penstock.errors import PlanError

UNITS = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}


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
