"""Which version of the code a checkpoint was written by."""

from __future__ import annotations

import re
from pathlib import Path

_COMMIT = re.compile("[0-9a-f]{40,64}")


def git_commit(start: Path) -> str | None:
    """The commit checked out at ``start`` or above it; None where there is no repository."""
    for directory in (start, *start.parents):
        git = directory / ".git"
        if git.is_dir():
            return _commit(git)
    return None


def _commit(git: Path) -> str | None:
    try:
        found = (git / "HEAD").read_text().strip()
        if found.startswith("ref: "):
            name = found.removeprefix("ref: ")
            if (git / name).exists():
                found = (git / name).read_text().strip()
            else:
                packed = (git / "packed-refs").read_text().splitlines()
                found = next((line[: -len(name) - 1] for line in packed if line.endswith(name)), "")
    except (OSError, ValueError):
        return None
    return found if _COMMIT.fullmatch(found) else None
