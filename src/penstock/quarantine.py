"""A file that lists what could not be read: a JSON object a line, by any number of processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.arguments import mapping
from penstock.errors import SourceError


def append_entry(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line to the list.

    Args:
        path: The file; it is created where there is none.
        entry: What JSON can hold.
    """
    line = (json.dumps(entry) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line)  # one write: lines of many processes do not mix
    finally:
        os.close(file)


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return all lines of the list; none where there is no file.

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
            f"{str(path)!r} is not a list of replaced samples ({error}): give another quarantine="
        ) from error
