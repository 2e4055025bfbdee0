"""Zarr stores that are not directories: zip files, and any store that is open in zarr-python."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from penstock.arguments import a_path
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.storage import (
    Allocate,
    ByteStore,
    DirectoryStore,
    byte_range,
    package_of,
    read_exactly,
    reading,
)
from penstock.sources.thread_buffers import Bytes

LOCAL_HEADER = 30  # bytes before the file name of an entry, which ends with the two lengths below
REMOTE_CONCURRENCY = 8  # requests of one read to stores that are usually far away
NEAR = ("MemoryStore", "LocalStore", "ZipStore")


def store_of(where: Any) -> ByteStore:
    """Return the store of anything that holds Zarr.

    Chunks with common codecs are decoded directly; of an object of zarr-python only their bytes
    come from its store, or from the files if the store is a directory.

    Args:
        where: A directory, a zip file (nothing is unpacked), a `ByteStore`, an array, a group or a
            store of zarr-python, or a session or a store of icechunk. What is in the store is read,
            also if that changed since it was opened.
    """
    if isinstance(where, ByteStore):
        return where
    if package_of(where) not in ("zarr", "icechunk"):
        path = a_path("path", where, error=SourceError)
        return ZipByteStore(path) if path.suffix.lower() == ".zip" else DirectoryStore(path)
    store, inside = getattr(where, "store", where), getattr(where, "path", "")
    if not hasattr(store, "list_dir"):
        raise SourceError(
            f"a {type(where).__name__} of {package_of(where)} is no array, group or store: of a "
            'repository of icechunk pass open_source(repository.readonly_session("main").store)'
        )
    if type(store).__name__ == "LocalStore":
        return DirectoryStore(Path(store.root) / inside)
    return ZarrPythonStore(store, inside)


class ZarrPythonStore(ByteStore):
    """The bytes of any store of zarr-python, also of icechunk, as a `ByteStore`.

    Args:
        store: The store.
        path: Of the node that is the root here.
    """

    def __init__(self, store: Any, path: str) -> None:
        self._store, self._prefix = store, f"{path}/" if path else ""
        self.concurrency = 1 if type(store).__name__ in NEAR else REMOTE_CONCURRENCY

    def name(self, key: str) -> str:
        """Return the name of ``key`` for messages."""
        return f"{type(self._store).__name__}:{self._prefix}{key}".rstrip("/")

    def fetch(
        self, key: str, allocate: Allocate, offset: int = 0, nbytes: int | None = None
    ) -> Bytes | None:
        """Return bytes of ``key``, or None if it is missing."""
        requests = optional("zarr.abc.store", extra="zarr")
        wanted = None
        if offset < 0:
            wanted = requests.SuffixByteRequest(-offset)
        elif nbytes is not None:
            wanted = requests.RangeByteRequest(offset, offset + nbytes)
        elif offset:
            wanted = requests.OffsetByteRequest(offset)
        prototype = optional("zarr.core.buffer", extra="zarr").default_buffer_prototype()
        found = self._call(key, lambda: self._store.get(self._prefix + key, prototype, wanted))
        if found is None:
            return None
        content: Bytes = np.frombuffer(found.to_bytes(), np.uint8)
        expected = nbytes if offset >= 0 else -offset
        if expected is not None and content.size != expected:
            raise SourceError(f"{self.name(key)} is truncated: write or copy the store again")
        return content

    def children(self, key: str) -> list[str]:
        """Return the names one level below ``key``."""

        async def listed() -> list[str]:
            return [name async for name in self._store.list_dir((self._prefix + key).rstrip("/"))]

        names = self._call(key, listed) or []
        return sorted(name for name in names if "zarr.json" != name and not name.startswith("."))

    def zarr_store(self) -> tuple[Any, str]:
        """Return the store of zarr-python, and the path of the root in it."""
        return self._store, self._prefix

    def _call(self, key: str, request: Callable[[], Any]) -> Any:
        with reading(self.name(key), "zarr-python"):
            try:
                return optional("zarr.core.sync", extra="zarr").sync(request())
            except FileNotFoundError:
                return None


class ZipByteStore(ByteStore):
    """The files in a zip file, as a `ByteStore`. Entries that are not compressed are read in place.

    Args:
        path: The zip file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with reading(self.path), zipfile.ZipFile(self.path) as file:
            self._entries = {each.filename: each for each in file.infolist()}

    def name(self, key: str) -> str:
        """Return the path of the file and of the entry in it."""
        return f"{self.path}/{key}" if key else str(self.path)

    def fetch(
        self, key: str, allocate: Allocate, offset: int = 0, nbytes: int | None = None
    ) -> Bytes | None:
        """Return bytes of an entry, or None if there is no such entry."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        first, wanted = byte_range(self.name(key), entry.file_size, offset, nbytes)
        stored = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1
        into = allocate(wanted if stored else entry.file_size)
        if stored:
            read_exactly(self.path, into, self._begin(entry) + first)
            return into
        with reading(self.name(key)):
            with zipfile.ZipFile(self.path) as file, file.open(entry) as content:
                into[...] = np.frombuffer(content.read(entry.file_size), np.uint8)
        return into[first : first + wanted]

    def children(self, key: str) -> list[str]:
        """Return the names of the folders one level below ``key``."""
        prefix = f"{key}/" if key else ""
        below = (name[len(prefix) :] for name in self._entries if name.startswith(prefix))
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def zarr_store(self) -> tuple[Any, str]:
        """Return a read-only zip store of zarr-python."""
        return optional("zarr.storage", extra="zarr").ZipStore(self.path, mode="r"), ""

    def _begin(self, entry: zipfile.ZipInfo) -> int:
        """Return where the bytes of an entry begin: after its header, name and extra field."""
        header = np.empty(LOCAL_HEADER, np.uint8)
        read_exactly(self.path, header, entry.header_offset)
        name, extra = header[26:30].view("<u2").tolist()
        return entry.header_offset + LOCAL_HEADER + int(name) + int(extra)
