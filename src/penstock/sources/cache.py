"""Caches on the local disk: of remote chunks, and of indexes of files that are built once.

A cache is a directory of bounded size that processes share. An index is kept in the user's cache
directory under a name that is computed from what it describes: names, sizes and times of files. If
a file changes, so does the name, and the index is built again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.arguments import a_path, whole_number
from penstock.atomic_files import cache_directory, replacing
from penstock.errors import SourceError
from penstock.sources.storage import stamp
from penstock.sources.thread_buffers import Bytes

Index: TypeAlias = dict[str, npt.NDArray[Any]]

TRAILER_BYTES = 12  # crc32 and length: detect a file that a crash cut short
SCANS_PER_LIMIT = 16
INDEX_LIMIT_BYTES = 2 << 30  # of all indexes together
RECENT_NS = 2_000_000_000  # a file written this recently may change again at the same timestamp


class BlockCache:
    """Byte strings by name, in files; the least recently used ones are deleted first.

    Files are renamed into place, so that other processes see complete ones or none. Each process
    scans the directory after it has written a sixteenth of ``limit_bytes``; the directory may
    exceed the limit by that much per process.

    Args:
        directory: Where the files are; created if it does not exist.
        limit_bytes: The size limit of the directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = BlockCache(folder, limit_bytes=1_000_000)
    ...     cache.put("a", b"123")
    ...     cache.get("a").tobytes()
    b'123'
    """

    def __init__(self, directory: str | os.PathLike[str], limit_bytes: int) -> None:
        self.directory = a_path("cache_dir", directory, error=SourceError)
        self.limit_bytes = whole_number(
            "cache_bytes", limit_bytes, minimum=1, unit="byte", error=SourceError
        )
        self._unscanned_bytes = limit_bytes  # the first write counts existing files
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SourceError(f"cannot create cache_dir {directory}: {error.strerror}") from error

    def get(self, name: str) -> Bytes | None:
        """Return the bytes of ``name``, or None if they are not cached."""
        file = self._file(name)
        try:
            whole = np.fromfile(file, np.uint8)
            os.utime(file)
        except OSError:
            return None
        body, trailer = whole[:-TRAILER_BYTES], whole[-TRAILER_BYTES:]
        if trailer.tobytes() != _trailer(body.data):
            file.unlink(missing_ok=True)
            return None
        return body

    def put(self, name: str, content: memoryview | bytes) -> None:
        """Cache ``content``; on a full disk, or where it may not write, do nothing."""
        file = self._file(name)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # without waiting for the disk: the checksum shows a damaged file
            with replacing(file, sync=False) as path, path.open("xb") as new:
                new.write(content)
                new.write(_trailer(content))
        except OSError:
            return
        self._unscanned_bytes += len(content) + TRAILER_BYTES
        if self._unscanned_bytes * SCANS_PER_LIMIT >= self.limit_bytes:
            self._unscanned_bytes = 0
            self._evict()

    def _file(self, name: str) -> Path:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return self.directory / digest[:2] / digest[2:40]

    def _evict(self) -> None:
        """Delete the least recently used files until the rest is within the limit."""
        files = []
        for file in self.directory.glob("??/*"):
            try:
                found = file.stat()
            except OSError:  # another process has deleted it
                continue
            files.append((found.st_mtime_ns, found.st_size, file))
        excess = sum(size for _, size, _ in files) - self.limit_bytes
        for _, size, file in sorted(files):
            if excess <= 0:
                return
            file.unlink(missing_ok=True)
            excess -= size


def _trailer(content: memoryview | bytes) -> bytes:
    crc = zlib.crc32(content)
    return crc.to_bytes(4, "little") + len(content).to_bytes(8, "little")


# -- indexes of files


def cached_index(
    kind: str, paths: Iterable[Path], facts: object, build: Callable[[], Index]
) -> Index:
    """Return an index of files: the one saved for the same files and facts, or a new one.

    A directory that other users could write to is not used. If the index cannot be saved, or the
    saved file is damaged, that is not an error: the index is built.

    Args:
        kind: The kind of index, with a version.
        paths: The files; the index is built again if the size or the time of one changes.
        facts: What else the index depends on, as JSON values.
        build: Builds the index: arrays by name, without objects.
    """
    stamps = [(str(path.absolute()), *stamp(path)) for path in paths]
    cache = _private_cache()
    if cache is None:
        return build()
    name = f"{kind} {json.dumps([facts, stamps])}"
    saved = cache.get(name)
    if saved is not None:
        try:
            with np.load(io.BytesIO(saved.tobytes()), allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            pass
    index = build()
    if time.time_ns() - max((changed for *_, changed in stamps), default=0) > RECENT_NS:
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
    return BlockCache(folder, INDEX_LIMIT_BYTES) if is_private and folder.is_dir() else None
