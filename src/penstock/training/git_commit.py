"""Which version of the code a checkpoint was written by."""

from __future__ import annotations

from pathlib import Path


def git_commit(start: Path) -> str | None:
    """The commit checked out at ``start`` or above it; None where there is no repository."""
    for directory in (start, *start.parents):
        git = directory / ".git"
        if git.is_dir():
            return _commit(git)
    return None


def _commit(git: Path) -> str | None:
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / name).exists():
            return (git / name).read_text().strip()
        packed = (git / "packed-refs").read_text().splitlines()
    except OSError:
        return None
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
