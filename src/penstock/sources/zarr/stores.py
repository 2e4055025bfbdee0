"""Zarr through other libraries: zip files, stores of zarr-python, and arrays that it decodes."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.array_source import Box
from penstock.sources.contract import Rows
from penstock.sources.sliceable import SliceableArray, library_lock
from penstock.sources.storage import (
    Allocate,
    ByteStore,
    DirectoryStore,
    LocalFile,
    byte_range,
    is_first_process,
    read_exactly,
    reading,
)
from penstock.sources.thread_buffers import Bytes
from penstock.sources.zarr.chunks import MissingChunks

LOCAL_HEADER = 30  # bytes before the file name of an entry, which ends with the two lengths below
REMOTE_CONCURRENCY = 8  # requests of one read to stores that are usually far away
NEAR = ("MemoryStore", "LocalStore", "ZipStore")


class ZarrPythonStore(ByteStore):
    """The bytes of any store of zarr-python, also of icechunk, as a `ByteStore`.

    Args:
        store: The store.
        path: The path of the node that is the root here.
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
        self._file = LocalFile(path)
        self.path = self._file.path
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
        if entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1:
            begin = self._begin(entry)
            byte_range(self.name(key), self._file.size, begin, entry.file_size)
            into = allocate(wanted)
            read_exactly(self.path, into, begin + first)
            self._file.verify()
            return into
        with reading(self.name(key)):
            with zipfile.ZipFile(self.path) as file, file.open(entry) as content:
                found = np.frombuffer(content.read(entry.file_size), np.uint8)
        self._file.verify()
        return found[byte_range(self.name(key), found.size, first, wanted)[0] :][:wanted]

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


# -- arrays that zarr-python decodes: other codecs, transposes, filters, structured dtypes


class GenericArray(SliceableArray):
    """An array read by zarr-python, with the ``zarrs`` codec pipeline where that is possible."""

    def __init__(
        self,
        store: ByteStore,
        key: str,
        missing: MissingChunks,
        why: str,
        axis: int,
    ) -> None:
        self._store, self._key, self._missing = store, key, missing
        self._opened: tuple[int, Any, _MissingSeen | None] | None = None
        (array, _), name = _open(store, key, pipeline=None), store.name(key.rstrip("/"))
        if missing.refused and array.shards is not None:
            raise SourceError(
                f"array {name} is read by zarr-python ({why}), which does not "
                "report missing chunks of a shard: open it with missing='fill'"
            )
        how = f"zarr-python ({why})"
        super().__init__(array, axis, name=name, how=how, chunks=array.chunks)
        self._array = None  # each process opens its own

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _fill(self, key: tuple[slice, ...], out: Rows) -> None:
        as_stored = self._axis == 0 and self.field.dtype == self._stored
        if as_stored and out.flags.c_contiguous:
            self._select(key, out)
            return
        rows = np.empty([part.stop - part.start for part in key], self._stored)
        self._select(key, rows)
        np.copyto(out, np.moveaxis(rows, self._axis, 0))

    def _select(self, key: tuple[slice, ...], into: Rows) -> None:
        if not into.size:
            return
        buffer = optional("zarr.buffer", extra="zarr").cpu.NDBuffer(into)
        array, seen = self._array_here()
        before = 0 if seen is None else seen.missing
        array.get_basic_selection(key, out=buffer)
        if seen is not None and seen.missing != before:
            self._missing.report(seen.last)
        if seen is None or seen.missing != before:
            self._missing.verify()

    def _facts(self, box: Box) -> list[object]:
        parts = list(box)
        parts.insert(self._axis, (0, self.samples))
        return [self.samples, parts, self._stored.str, self.chunk_samples, self._axis]

    def _array_here(self) -> tuple[Any, _MissingSeen | None]:
        if self._opened is None or self._opened[0] != os.getpid():
            # zarrs would open its own connections to a server, without our retries, and it does
            # not report chunks that are missing
            local = isinstance(self._store, DirectoryStore) and not self._missing.refused
            plain = self.field.dtype == self._stored and self._stored.kind in "biufc"
            pipeline = _zarrs() if local and plain else None
            self._opened = (os.getpid(), *_open(self._store, self._key, pipeline))
        return self._opened[1:]


def _zarrs() -> str | None:
    """Return the codec pipeline of ``zarrs``; None if it is missing, or has no threads here."""
    try:
        optional("zarrs", extra="zarr")
    except ImportError:
        return None
    return "zarrs.ZarrsCodecPipeline" if is_first_process("zarrs") else None


@dataclass(slots=True)
class _MissingSeen:
    """Missing objects that zarr-python has asked for: how many, and the last one."""

    missing: int = 0
    last: str = ""


@cache
def _observed_store() -> Any:
    """Return a store class that counts the requests for missing objects."""
    wrapper: Any = optional("zarr.storage", extra="zarr").WrapperStore

    class ObservedStore(wrapper):  # type: ignore[misc]
        seen: _MissingSeen

        def _with_store(self, store: Any) -> Any:
            other = type(self)(store)
            other.seen = self.seen
            return other

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            found = await self._store.get(key, prototype, byte_range)
            if found is None:
                self.seen.missing, self.seen.last = self.seen.missing + 1, key
            return found

    return ObservedStore


def _open(store: ByteStore, key: str, pipeline: str | None) -> tuple[Any, _MissingSeen | None]:
    """Return the array, and what is missing of it; zarrs does not report that."""
    zarr = optional("zarr", extra="zarr")
    settings, seen = {"codec_pipeline.path": pipeline}, None
    with reading(store.name(key.rstrip("/")), "zarr-python"):
        opened, prefix = store.zarr_store()
        if pipeline is None:
            settings, seen = {}, _MissingSeen()
            opened = _observed_store()(opened)
            opened.seen = seen
        # the pipeline is chosen when an array is opened; the setting is global, and restored
        with library_lock("zarr"), zarr.config.set(settings), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about fallbacks inside of zarrs
            return zarr.open_array(opened, path=(prefix + key).strip("/"), mode="r"), seen
