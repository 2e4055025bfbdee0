"""A file that lists samples that could not be read, as JSON lines, from any number of processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.arguments import mapping
from penstock.errors import SourceError


def append_entry(path: Path, entry: Mapping[str, Any]) -> None:
    """Append a line to the list.

    Args:
        path: The file; it is created if it does not exist.
        entry: Values that JSON can represent.
    """
    line = (json.dumps(entry) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line)  # a single write, so that lines of several processes do not mix
    finally:
        os.close(file)


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return all lines of the list; an empty list if there is no file.

    Args:
        path: The file.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_text().splitlines()
        return [mapping("a line", json.loads(line), error=SourceError) for line in lines]
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(
            f"{str(path)!r} is not a list of replaced samples ({error}): pass another quarantine="
        ) from error
