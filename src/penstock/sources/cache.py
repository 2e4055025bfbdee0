"""Blocks of remote data in a local directory of bounded size, shared by processes."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import numpy as np

from penstock.arguments import whole_number
from penstock.atomic_files import replacing
from penstock.errors import SourceError
from penstock.sources.requests import checked_path
from penstock.sources.scratch import Bytes

TRAILER_BYTES = 12  # crc32 and length: a file cut short by a crash is noticed and dropped
SCANS_PER_LIMIT = 16


class BlockCache:
    """Byte strings by name in files; the ones used longest ago go first.

    Files appear by renaming, so that other processes see whole ones or none. Each process looks
    at the whole directory after it has written a sixteenth of ``limit_bytes``; so the directory
    may exceed the limit by that much per process.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = BlockCache(folder, limit_bytes=1_000_000)
    ...     cache.put("a", b"123")
    ...     cache.get("a").tobytes()
    b'123'
    """

    def __init__(self, directory: str | os.PathLike[str], limit_bytes: int) -> None:
        self.directory = checked_path(directory)
        self.limit_bytes = whole_number(
            "cache_bytes", limit_bytes, minimum=1, unit="byte", error=SourceError
        )
        self._unscanned_bytes = limit_bytes  # what is there already is counted at the first write
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SourceError(f"cannot make cache_dir {directory}: {error.strerror}") from error

    def get(self, name: str) -> Bytes | None:
        """The bytes of ``name``; None where they are not here."""
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
        """Keep ``content``; a full disk or a lost directory only means that it is not kept."""
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
        """Delete the files used longest ago until the rest is within the limit."""
        files = [(s.st_mtime_ns, s.st_size, file) for file, s in _files(self.directory)]
        excess = sum(size for _, size, _ in files) - self.limit_bytes
        for _, size, file in sorted(files):
            if excess <= 0:
                return
            file.unlink(missing_ok=True)
            excess -= size


def _files(directory: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    for file in directory.glob("??/*"):
        try:
            found.append((file, file.stat()))
        except OSError:  # another process was faster
            continue
    return found


def _trailer(content: memoryview | bytes) -> bytes:
    crc = zlib.crc32(content)
    return crc.to_bytes(4, "little") + len(content).to_bytes(8, "little")
