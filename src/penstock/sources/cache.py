"""A local cache of remote chunks: a directory of bounded size that processes share."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import numpy as np

from penstock.arguments import a_path, whole_number
from penstock.atomic_files import replacing
from penstock.errors import SourceError
from penstock.sources.thread_buffers import Bytes

TRAILER_BYTES = 12  # crc32 and length: detect a file that a crash cut short
SCANS_PER_LIMIT = 16


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
            raise SourceError(f"cannot make cache_dir {directory}: {error.strerror}") from error

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
        """Cache ``content``; on a full disk, or without the directory, do nothing."""
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
