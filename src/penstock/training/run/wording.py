"""Errors as people read them."""

from __future__ import annotations


def in_a_line(error: BaseException) -> str:
    """The kind of an error and what it says, without what a worker's traceback adds.

    >>> in_a_line(ValueError("no such pitch: 440"))
    'ValueError: no such pitch: 440'
    >>> in_a_line(KeyError("x"))
    "KeyError: 'x'"
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "Traceback" in str(error):
        return lines[-1]  # torch puts a worker's error at the end of its traceback
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
