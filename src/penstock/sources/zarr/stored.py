"""Where the stored bytes of arrays come from: files in a directory, or objects in a bucket."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.files import fill_from, truncated
from penstock.sources.scratch import Bytes

Room: TypeAlias = Callable[[int], Bytes]


@runtime_checkable
class StoredBytes(Protocol):
    """Named byte strings. Picklable to an address; all methods may be called from any thread."""

    @property
    def concurrency(self) -> int:
        """Requests that are worth having in flight at once for one read."""
        ...

    def name(self, key: str) -> str:
        """What a message should call ``key``."""
        ...

    def fetch(
        self, key: str, room: Room, offset: int = 0, nbytes: int | None = None
    ) -> Bytes | None:
        """Bytes of ``key`` in memory from ``room(size)`` or their own; None where it is missing.

        A negative ``offset`` counts from the end; ``nbytes=None`` means all the rest.
        """
        ...

    def mapped(self, key: str) -> mmap.mmap | None:
        """The bytes of ``key`` as mapped pages; None where it is missing or cannot be mapped."""
        ...

    def children(self, key: str) -> list[str]:
        """Names one level below ``key``."""
        ...

    def zarr_store(self) -> Any:
        """The same place for zarr-python."""
        ...


def new_memory(nbytes: int) -> Bytes:
    """Room that nobody else has: for bytes that are kept.

    >>> new_memory(4).size
    4
    """
    return np.empty(nbytes, np.uint8)


class Directory:
    """Files under one directory. Nothing stays open between calls, so a fork breaks nothing."""

    concurrency = 1  # the page cache answers at once; the caller's threads are the parallelism

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Directory({str(self.path)!r})"

    def name(self, key: str) -> str:
        """The path of the file."""
        return f"{self.path}/{key}" if key else str(self.path)

    def fetch(
        self, key: str, room: Room, offset: int = 0, nbytes: int | None = None
    ) -> Bytes | None:
        """Bytes of the file, read into ``room``; None where there is no such file."""
        handle = self._opened(key)
        if handle is None:
            return None
        try:
            size = os.fstat(handle).st_size
            first = max(0, size + offset) if offset < 0 else offset
            wanted = max(0, size - first) if nbytes is None else nbytes
            if (
                first + wanted > size
            ):  # before memory is made for it: a damaged index may ask for any
                raise truncated(self.name(key), first + wanted - size)
            into = room(wanted)
            fill_from(handle, into, first, name=self.name(key))
        finally:
            os.close(handle)
        return into

    def mapped(self, key: str) -> mmap.mmap | None:
        """The file as read-only mapped pages; None where it is missing or empty."""
        handle = self._opened(key)
        if handle is None:
            return None
        try:
            return mmap.mmap(handle, 0, prot=mmap.PROT_READ) if os.fstat(handle).st_size else None
        except (OSError, ValueError) as error:
            raise SourceError(f"cannot map {self.name(key)}: {error}") from error
        finally:
            os.close(handle)

    def children(self, key: str) -> list[str]:
        """Names of the directories below."""
        folder = self.path / key
        try:
            return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        except OSError as error:
            raise SourceError(f"cannot list {folder}: {error.strerror}") from error

    def zarr_store(self) -> Any:
        """A read-only local store of zarr-python."""
        storage = optional("zarr.storage", extra="zarr")
        return storage.LocalStore(self.path, read_only=True)

    def _opened(self, key: str) -> int | None:
        try:
            return os.open(f"{self.path}/{key}", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SourceError(f"cannot read {self.name(key)}: {error.strerror}") from error
