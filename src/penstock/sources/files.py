"""Bytes of local files, read straight into given memory."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import SourceError
from penstock.sources.scratch import Bytes


def read_exactly(path: Path | str, into: Bytes, offset: int) -> None:
    """Fill ``into`` with the bytes of ``path`` from ``offset``; a shorter file is an error."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    try:
        fill_from(handle, into, offset, name=path)
    finally:
        os.close(handle)


def fill_from(handle: int, into: Bytes, offset: int, *, name: Path | str) -> None:
    """Fill ``into`` from an open file; one system call gives at most 2 GB, so ask until full."""
    done = 0
    while done < into.size:
        try:
            count = os.preadv(handle, [into[done:]], offset + done)  # type: ignore[list-item]
        except OSError as error:
            raise SourceError(f"cannot read {name}: {error.strerror}") from error
        if count == 0:
            raise truncated(name, into.size - done)
        done += count


def truncated(name: Path | str, missing_bytes: int) -> SourceError:
    """The error about a file that is shorter than it must be."""
    return SourceError(
        f"{name} ends {missing_bytes} bytes too early: it is truncated; write or copy it again"
    )
