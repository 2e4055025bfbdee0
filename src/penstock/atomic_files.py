"""Atomic file writes: a reader finds the old file or the complete new one. Also JSON Lines files.

A new file is created beside the old one, under a name that cannot be predicted and must not exist:
a symbolic link planted there is never followed. The file is synced to disk and renamed, and the
rename is synced too. A process that is killed leaves the old file, and at most one unfinished file,
which `remove_unfinished` deletes.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     replace_text(Path(folder, "a.json"), "{}")
...     Path(folder, "a.json").read_text()
'{}'
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final

from penstock.arguments import mapping
from penstock.errors import SourceError

log = logging.getLogger("penstock")

UNFINISHED: Final = ".tmp"
TOKEN_BYTES: Final = 8
NAME_CHARACTERS: Final = 40  # of the old name in the new one: file systems limit the length


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path for the new file, and rename it to ``path`` at the end of the block.

    If the block fails, ``path`` is left as it was. The block must create the file exclusively
    (mode ``"x"``), or as a hard link.

    Args:
        path: The file to replace.
        sync: Whether to wait for the disk; without, a power failure may leave a damaged file.
    """
    new = _unfinished_name(path)
    try:
        yield new
        if sync:
            _sync(new, os.O_NOFOLLOW)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if sync:
        _sync(path.parent)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a directory, and rename it to ``path`` at the end of the block.

    If the block fails, what it wrote is removed. Missing parents are created.

    Args:
        path: The directory to create; it must not exist.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _unfinished_name(path)
    try:
        yield new
        new.rename(path)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _unfinished_name(path: Path) -> Path:
    token = secrets.token_hex(TOKEN_BYTES)
    return path.with_name(f".{path.name[:NAME_CHARACTERS]}.{token}{UNFINISHED}")


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace ``path`` with what ``write`` writes, with the permissions of a new file.

    Args:
        path: The file to replace.
        write: Called with the open file.
    """
    if path.exists() and not path.is_file():  # a rename would replace a device or a pipe
        with path.open("wb") as file:
            write(file)
        return
    with replacing(path) as new, new.open("xb") as file:
        write(file)


def replace_text(path: Path, text: str) -> None:
    """Replace ``path`` with a file that contains ``text``, in UTF-8."""
    replace_file(path, lambda file: file.write(text.encode()))


def cache_directory() -> Path:
    """Return Penstock's cache directory: ``PENSTOCK_CACHE``, or one in the user's cache."""
    own = os.environ.get("PENSTOCK_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "penstock"


def cache_path(kind: str, identity: str) -> Path:
    """Return the file in the user's cache for something with this identity."""
    name = blake2b(identity.encode(), digest_size=12).hexdigest()
    return cache_directory() / kind / f"{name}.json"


def write_cache(path: Path, value: object) -> None:
    """Write ``value`` as JSON; a failure is only logged, since a cache only saves time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(value))
    except OSError as error:
        log.info("cannot write to the cache: %s", error)


def remove_unfinished(directory: Path) -> None:
    """Delete the unfinished files of killed processes; no other process may be writing there."""
    for path in directory.glob(f".*.{'[0-9a-f]' * 2 * TOKEN_BYTES}{UNFINISHED}"):
        path.unlink(missing_ok=True)


def _sync(path: Path, flags: int = 0) -> None:
    """Wait until the bytes of a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- a file that lists samples that could not be read, written by any number of processes


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
            f"{str(path)!r} is not a list of replaced samples ({error}): use another quarantine="
        ) from error
