"""Indexes of files that are built once and remembered between runs.

An index is kept in the user's cache directory under a name that is computed from what it
describes: names, sizes and times of files. If a file changes, the name is another one, and the
index is built again. `BlockCache` checks what it reads and deletes the oldest indexes.
"""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.sources.cache import BlockCache

Index: TypeAlias = dict[str, npt.NDArray[Any]]

LIMIT_BYTES = 2 << 30  # of all indexes together
RECENT_NS = 2_000_000_000  # a file that has just been written may change without a new time


def cache_directory() -> Path:
    """Return where indexes are kept: ``PENSTOCK_CACHE``, or below the user's cache directory."""
    own = os.environ.get("PENSTOCK_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "penstock"


def stamp(path: Path) -> tuple[int, int]:
    """Return size and time of modification of a file, in bytes and nanoseconds."""
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    return found.st_size, found.st_mtime_ns


def remembered(
    kind: str, facts: object, build: Callable[[], Index], *, times: Iterable[int] = ()
) -> Index:
    """Return an index: as it was saved for the same facts, or built now and saved.

    A directory that other users could write to is not used, and neither saving nor reading a
    damaged file is an error: then the index is built.

    Args:
        kind: What it is an index of, with a version.
        facts: Names, sizes and times of the files that it describes, as JSON values.
        build: Builds the index: arrays by name, without objects.
        times: When the files were modified, in nanoseconds: an index of new files is not saved.
    """
    cache = _private_cache()
    if cache is None:
        return build()
    name = f"{kind} {json.dumps(facts)}"
    saved = cache.get(name)
    if saved is not None:
        try:
            with np.load(io.BytesIO(saved.tobytes()), allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            pass
    index = build()
    if time.time_ns() - max(times, default=0) > RECENT_NS:
        written = io.BytesIO()
        np.savez(written, **index)  # type: ignore[arg-type]
        cache.put(name, written.getvalue())
    return index


def _private_cache() -> BlockCache | None:
    """Return the cache, or None if there is none that only this user can write to."""
    try:
        folder = cache_directory() / "indexes"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError):  # no home directory
        return None
    is_private = not found.st_mode & 0o022 and found.st_uid == os.getuid()
    return BlockCache(folder, LIMIT_BYTES) if is_private and folder.is_dir() else None
