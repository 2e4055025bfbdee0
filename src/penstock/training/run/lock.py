"""A lock on a directory that ends with the process that holds it, however that ends."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError

LOCK: Final = ".lock"


class InUseError(ConfigError):
    """A run directory that another process works in."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """A block in which no other process may work in ``directory``.

    The kernel holds the lock, not the file: that of a process that died is free. The file stays,
    for one that removes it could remove the lock of the next.
    """
    try:
        # a link in its place is refused: the file it points to would be overwritten
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise ConfigError(
            f"run_dir {str(directory)!r} cannot be written to ({error.strerror}): give another one"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise InUseError(
                f"run directory {str(directory)!r} is in use by {holder}: wait for it, stop it, or "
                "give another run_dir"
            ) from None
        os.truncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
