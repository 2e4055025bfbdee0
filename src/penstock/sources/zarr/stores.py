"""Zarr stores that are not directories: zip files, and any store that is open in zarr-python."""

from __future__ import annotations

import mmap
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.storage import (
    UNREADABLE,
    Allocate,
    DirectoryStore,
    one_line,
    read_exactly,
)
from penstock.sources.thread_buffers import Bytes
from penstock.sources.zarr.hierarchy import is_zarr
from penstock.sources.zarr.source import ZarrSource

LOCAL_HEADER = 30  # bytes before the file name of an entry, which ends with the two lengths below
REMOTE_CONCURRENCY = 8  # requests of one read to stores that are usually far away
NEAR = ("MemoryStore", "LocalStore", "ZipStore")


def open_zip(
    path: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    along: int | str | None = None,
    decode: bool = True,
    **options: Any,
) -> ZarrSource:
    """Return a source over a Zarr store in one zip file, such as ``data.zarr.zip``.

    Args:
        path: The file. It is read in place; nothing is unpacked.
        fields: As for `ZarrSource`.
        along: As for `ZarrSource`.
        decode: As for `ZarrSource`.
        options: Of `ZarrSource`.
    """
    store = ZipByteStore(path)
    if not is_zarr(store):
        raise SourceError(
            f"{path} holds no Zarr store at its top level: unpack it, and open what is inside"
        )
    return ZarrSource(store, fields=fields, along=along, decode=decode, **options)


def open_zarr(
    where: Any,
    *,
    fields: Sequence[str] | None = None,
    along: int | str | None = None,
    decode: bool = True,
    **options: Any,
) -> ZarrSource:
    """Return a source over an open ``zarr.Array`` or ``zarr.Group``, in any store of zarr-python.

    Chunks with common codecs are decoded directly; only their bytes come from zarr-python, or
    from the files if the store is a directory.

    Args:
        where: The array or group. What is in its store is read, also if that changed since.
        fields: As for `ZarrSource`.
        along: As for `ZarrSource`.
        decode: As for `ZarrSource`.
        options: Of `ZarrSource`.
    """
    if not hasattr(where, "store") or not hasattr(where, "path"):
        raise SourceError(f"a {type(where).__name__} of zarr is neither an array nor a group")
    store: ZarrPythonStore | DirectoryStore = ZarrPythonStore(where.store, where.path)
    if type(where.store).__name__ == "LocalStore":
        store = DirectoryStore(Path(where.store.root) / where.path)
    return ZarrSource(store, fields=fields, along=along, decode=decode, **options)


class ZarrPythonStore:
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

    def mapped(self, key: str) -> mmap.mmap | None:
        """Return None: zarr-python copies."""
        return None

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
        try:
            return optional("zarr.core.sync", extra="zarr").sync(request())
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            raise SourceError(
                f"zarr-python cannot read {self.name(key)}: {one_line(error)}"
            ) from error


class ZipByteStore:
    """The files in a zip file, as a `ByteStore`. Entries that are not compressed are read in place.

    Args:
        path: The zip file.
    """

    concurrency = 1

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with zipfile.ZipFile(self.path) as file:
                self._entries = {each.filename: each for each in file.infolist()}
        except (zipfile.BadZipFile, *UNREADABLE) as error:
            raise SourceError(
                f"cannot open {self.path}: {one_line(error)}; if it is truncated or damaged, write "
                "or copy it again"
            ) from error
        self._folders: dict[str, set[str]] = {}
        for name in self._entries:
            parts = name.split("/")
            for depth in range(len(parts) - 1):
                folder = "/".join(parts[:depth])
                self._folders.setdefault(folder, set()).add(parts[depth])

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
        first = max(0, entry.file_size + offset) if offset < 0 else offset
        wanted = max(0, entry.file_size - first) if nbytes is None else nbytes
        if first + wanted > entry.file_size:
            raise SourceError(f"{self.name(key)} ends too early: write or copy the file again")
        stored = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1
        into = allocate(wanted if stored else entry.file_size)
        if stored:
            read_exactly(self.path, into, self._begin(entry) + first)
            return into
        try:
            with zipfile.ZipFile(self.path) as file, file.open(entry) as content:
                whole = content.read(entry.file_size)
        except (zipfile.BadZipFile, *UNREADABLE) as error:
            raise SourceError(f"cannot read {self.name(key)}: {one_line(error)}") from error
        if len(whole) != into.size:
            raise SourceError(f"{self.name(key)} ends too early: write or copy the file again")
        into[...] = np.frombuffer(whole, np.uint8)
        return into[first : first + wanted]

    def mapped(self, key: str) -> mmap.mmap | None:
        """Return None: an entry does not begin at a page."""
        return None

    def children(self, key: str) -> list[str]:
        """Return the names of the folders one level below ``key``."""
        prefix = f"{key}/" if key else ""
        names = self._folders.get(key, set())
        return sorted(name for name in names if prefix + name in self._folders)

    def zarr_store(self) -> tuple[Any, str]:
        """Return a read-only zip store of zarr-python."""
        return optional("zarr.storage", extra="zarr").ZipStore(self.path, mode="r"), ""

    def _begin(self, entry: zipfile.ZipInfo) -> int:
        """Return where the bytes of an entry begin: after its header, name and extra field."""
        header = np.empty(LOCAL_HEADER, np.uint8)
        read_exactly(self.path, header, entry.header_offset)
        name, extra = header[26:30].view("<u2").tolist()
        return entry.header_offset + LOCAL_HEADER + int(name) + int(extra)
