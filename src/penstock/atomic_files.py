"""Files that are replaced as a whole: a reader finds the old file or the new one, never a part.

The new file is created beside the old one under a name that nobody can predict, and only where
no file of that name exists: a symbolic link planted there is never followed. It is synced to the
disk, renamed, and the rename is synced too. A process killed at any moment leaves the old file,
and at most one unfinished file, which `remove_unfinished` deletes.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     replace_text(Path(folder, "a.json"), "{}")
...     Path(folder, "a.json").read_text()
'{}'
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

UNFINISHED: Final = ".tmp"
TOKEN_BYTES: Final = 8
NAME_CHARACTERS: Final = 40  # of the old name that are kept in the new one: names are limited


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A block that creates the file at the path it is given; ``path`` is that file afterwards.

    If the block fails, ``path`` is left as it was. The block must create the file exclusively
    (mode ``"x"``), or as a hard link.
    """
    name = f".{path.name[:NAME_CHARACTERS]}.{secrets.token_hex(TOKEN_BYTES)}{UNFINISHED}"
    new = path.with_name(name)
    try:
        yield new
        _sync(new, os.O_NOFOLLOW)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Make ``path`` the file that ``write`` writes; the permissions are those of a new file."""
    if path.exists() and not path.is_file():  # a device or a pipe must not be renamed over
        with path.open("wb") as file:
            write(file)
        return
    with replacing(path) as new, new.open("xb") as file:
        write(file)


def replace_text(path: Path, text: str) -> None:
    """Make ``path`` a file with this text, in UTF-8."""
    replace_file(path, lambda file: file.write(text.encode()))


def remove_unfinished(directory: Path) -> None:
    """Delete what killed processes left unfinished; no other process may be writing there."""
    for path in directory.glob(f".*.{'[0-9a-f]' * 2 * TOKEN_BYTES}{UNFINISHED}"):
        path.unlink(missing_ok=True)


def _sync(path: Path, flags: int = 0) -> None:
    """Wait until a file's bytes, or a directory's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
