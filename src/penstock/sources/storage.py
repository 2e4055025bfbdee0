"""Stored bytes: local files, the interface of a byte store, and addresses on object storage."""

from __future__ import annotations

import io
import lzma
import mmap
import os
import re
import struct
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, TypeAlias

import numpy as np

from penstock.arguments import a_path
from penstock.errors import PenstockError, SourceError
from penstock.extras import optional
from penstock.sources.thread_buffers import Bytes

Allocate: TypeAlias = Callable[[int], Bytes]

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure", "http", "https")
_USER = re.compile(r"(\w+:/{1,2})[^/\s'\"]*@")
_QUERY = re.compile(r"(\w+:/[^\s'\"?#]*)[?#][^\s'\"]*")
_OBJECT = re.compile(r" ?<[^<>]* at 0x\w+>")


# what codecs, parsers and libraries raise at bytes they did not write
UNREADABLE = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError),
    *(OSError, RuntimeError, SyntaxError, TypeError, ValueError, TokenError, lzma.LZMAError),
    *(struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error),
)
AGAIN = "if it is truncated or damaged, write or copy it again"


def is_url(where: str) -> bool:
    """Return whether ``where`` is an address on object storage.

    >>> is_url("s3://bucket/data.zarr"), is_url("/data.zarr")
    (True, False)
    """
    scheme, found, _ = where.partition("://")
    return bool(found) and scheme.lower() in SCHEMES


def is_pattern(path: str) -> bool:
    """Return whether a path is a pattern for several files.

    >>> is_pattern("clips/*.wav"), is_pattern("clips/a.wav")
    (True, False)
    """
    return any(character in path for character in "*?[")


def package_of(value: object) -> str:
    """Return the name of the package that defines the type of ``value``.

    >>> package_of(np.zeros(3))
    'numpy'
    """
    return type(value).__module__.partition(".")[0]


def redacted(text: str) -> str:
    """Return the text without user names, passwords, query strings and fragments of URLs.

    Other people may read a message, a log or a `repr`; a signed URL or a password would give
    them access.

    >>> redacted("cannot open s3://key:secret@bucket/x.zarr?token=abc: refused")
    'cannot open s3://***@bucket/x.zarr?*** refused'
    """
    return _QUERY.sub(r"\1?***", _USER.sub(r"\1***@", text))


def _reason(error: BaseException) -> str:
    r"""Return what an error of another library says, in one line without credentials.

    >>> _reason(ValueError("two\nlines"))
    'two lines'
    """
    said = getattr(error, "strerror", None) or _OBJECT.sub("", str(error))
    return redacted(" ".join(said.split()))[:300] or type(error).__name__


@contextmanager
def reading(
    name: object,
    by: str = "",
    *,
    advice: str = AGAIN,
    errors: tuple[type[Exception], ...] = UNREADABLE,
) -> Iterator[None]:
    """Turn the errors of a library that reads a file into a ``SourceError`` of one sentence.

    Args:
        name: What is read, for the message.
        by: The library that reads it.
        advice: What to do.
        errors: What the library raises.

    >>> with reading("x.zip", "zipfile"):
    ...     raise ValueError("bad magic")
    Traceback (most recent call last):
    ...
    penstock.errors.SourceError: zipfile cannot read x.zip: bad magic; if it is truncated ...
    """
    try:
        yield
    except PenstockError:
        raise
    except FileNotFoundError:
        raise SourceError(f"there is no file {name}") from None
    except PermissionError as error:
        raise _forbidden(name) from error
    except BlockingIOError as error:
        wait = "it is locked by a program that writes it; wait until that has closed it"
        raise SourceError(f"cannot read {name}: {wait}") from error
    except errors as error:
        # not "from error": its text may hold credentials of a URL
        raise SourceError(f"{by} cannot read {name}: {_reason(error)}; {advice}".lstrip()) from None


_STARTED: dict[str, int] = {}


def is_first_process(library: str) -> bool:
    """Return whether a library's threads run in this process: in forked children they do not.

    Args:
        library: A library that starts threads when it is used; the first process that calls this
            has them.
    """
    return _STARTED.setdefault(library, os.getpid()) == os.getpid()


def new_memory(nbytes: int) -> Bytes:
    """Return new memory, for bytes that outlive the next read.

    >>> new_memory(4).size
    4
    """
    return np.empty(nbytes, np.uint8)


def read_exactly(path: Path | str, into: Bytes, offset: int) -> None:
    """Fill ``into`` with the bytes of ``path`` from ``offset``; a shorter file is an error."""
    with reading(path):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _fill(handle, into, offset, path)
    finally:
        os.close(handle)


def _fill(handle: int, into: Bytes, offset: int, name: Path | str) -> None:
    done = 0
    while done < into.size:  # one system call reads at most 2 GB
        try:
            count = os.preadv(handle, [into[done:]], offset + done)  # type: ignore[list-item]
        except OSError as error:
            raise SourceError(f"cannot read {name}: {error.strerror}") from error
        if count == 0:
            raise _truncated(name, into.size - done)
        done += count


def byte_range(name: str, size: int, offset: int, nbytes: int | None) -> tuple[int, int]:
    """Return the first byte and the number of bytes that `ByteStore.fetch` asks for.

    Checked before memory is allocated: a damaged index may ask for anything.

    >>> byte_range("x", 100, -10, None), byte_range("x", 100, 20, 5)
    ((90, 10), (20, 5))
    """
    first = max(0, size + offset) if offset < 0 else offset
    wanted = max(0, size - first) if nbytes is None else nbytes
    if first + wanted > size:
        raise _truncated(name, first + wanted - size)
    return first, wanted


def _forbidden(name: object) -> SourceError:
    return SourceError(f"cannot read {name}: permission denied; let this user read it")


def _truncated(name: Path | str, missing_bytes: int) -> SourceError:
    return SourceError(
        f"{name} ends {missing_bytes} bytes too early: it is truncated; write or copy it again"
    )


def stamp(path: Path) -> tuple[int, int]:
    """Return size and time of modification of a file, in bytes and nanoseconds."""
    with reading(path):
        found = path.stat()
    return found.st_size, found.st_mtime_ns


def changed_file(path: Path) -> SourceError:
    """Return the error of a file that was written or replaced since it was opened."""
    return SourceError(
        f"{path} has changed while it was read: do not write to a file that is being read; open it "
        "again"
    )


class StoredFile(ABC):
    """One file that is read by ranges of bytes: on the local disk, or on object storage.

    Attributes:
        name: The name for messages.
        size: The number of bytes.
        version: A text that changes when the file is written again.
        in_flight: Simultaneous reads that it needs for its full speed; None if it is local.
        path: The path of a local file; None for others.
    """

    name: str
    size: int
    version: str
    in_flight: int | None = None
    path: Path | None = None

    @abstractmethod
    def read_at(self, offset: int, nbytes: int) -> Bytes:
        """Return bytes; raise ``SourceError`` if they no longer exist."""

    def mapped(self) -> mmap.mmap | None:
        """Return the bytes as mapped pages, or None if they must be fetched."""
        return None

    def verify(self) -> None:
        """Raise ``SourceError`` if the file was written since it was opened."""
        return  # what is fetched has a version


class LocalFile(StoredFile):
    """A file on the local disk.

    Args:
        path: Where it is.
    """

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = a_path("path", path, error=SourceError)
        self.name = str(self.path)
        with reading(self.name):
            found = self.path.stat()
        self.size, self.version = found.st_size, f"{found.st_size} {found.st_mtime_ns}"
        self._identity = found.st_size, found.st_mtime_ns, found.st_ino
        self._pages: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pages": None}

    def read_at(self, offset: int, nbytes: int) -> Bytes:
        """Return bytes of the file."""
        raw = new_memory(nbytes)
        read_exactly(self.path, raw, offset)
        return raw

    def verify(self) -> None:
        """Raise ``SourceError`` if the file was written or replaced since it was opened.

        Its size, inode and modification time are compared: a file that is written again
        within the resolution of that time, usually some milliseconds, looks the same.
        """
        with reading(self.name):
            now = self.path.stat()
        if (now.st_size, now.st_mtime_ns, now.st_ino) != self._identity:
            raise changed_file(self.path)

    def mapped(self) -> mmap.mmap:
        """Return read-only pages; touching them after the file has shrunk would raise SIGBUS."""
        # two threads may both map the file and keep one map: harmless, and no lock to fork
        pages = self._pages
        if pages is None:
            with reading(self.name), self.path.open("rb") as file:
                self._pages = pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        if pages.size() < self.size:
            raise SourceError(
                f"{self.name} has shrunk to {pages.size()} bytes of {self.size} while it was read: "
                "restore the file"
            )
        self.verify()
        return pages


def stored_file(where: str | os.PathLike[str] | StoredFile) -> StoredFile:
    """Return the file at a path, or one that is open already."""
    return where if isinstance(where, StoredFile) else LocalFile(where)


class RangeFile(io.RawIOBase):
    """A `StoredFile` as a Python file object, for libraries that read files.

    Args:
        file: The file.
    """

    def __init__(self, file: StoredFile) -> None:
        super().__init__()
        self._file, self._at = file, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Change the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, by default all that are left."""
        rest = max(0, self._file.size - self._at)
        count = rest if size is None or size < 0 else min(size, rest)
        found = self._file.read_at(self._at, count).tobytes()
        self._at += count
        return found


class ByteStore(ABC):
    """Byte strings by key: files under a directory, or objects under a URL.

    A pickle holds only the address. All methods may be called from any thread.

    Attributes:
        concurrency: Requests that one read should have in flight at once.
        together_bytes: Most bytes of several chunks that one request should fetch.
        gap_bytes: Unneeded bytes between two of them that may be fetched.
    """

    concurrency = 1
    together_bytes = 1 << 20
    gap_bytes = 1 << 14  # read in less time than a file is opened

    @abstractmethod
    def name(self, key: str) -> str:
        """Return the name of ``key`` for messages."""

    @abstractmethod
    def fetch(
        self, key: str, allocate: Allocate, offset: int = 0, nbytes: int | None = None
    ) -> Bytes | None:
        """Return bytes of ``key``, or None if it is missing.

        Args:
            key: Which byte string.
            allocate: Returns memory of a given size; a store may use memory of its own instead.
            offset: The first byte; a negative offset counts from the end.
            nbytes: How many bytes; all the rest if None.
        """

    def mapped(self, key: str) -> mmap.mmap | None:
        """Return ``key`` as mapped pages, or None if it is missing or cannot be mapped."""
        return None

    @abstractmethod
    def children(self, key: str) -> list[str]:
        """Return the names one level below ``key``."""

    @abstractmethod
    def zarr_store(self) -> tuple[Any, str]:
        """Return a read-only store of zarr-python over the same bytes, and the prefix of keys."""


class DirectoryStore(ByteStore):
    """Files under a directory. No file stays open between calls, so a fork is safe.

    Args:
        path: The directory.
    """

    # concurrency 1: the page cache answers at once, and the caller's threads are the parallelism

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self.path)!r})"

    def name(self, key: str) -> str:
        """Return the path of the file."""
        return f"{self.path}/{key}" if key else str(self.path)

    def fetch(
        self, key: str, allocate: Allocate, offset: int = 0, nbytes: int | None = None
    ) -> Bytes | None:
        """Return bytes of the file, or None if there is no such file."""
        handle, name = self._open(key), self.name(key)
        if handle is None:
            return None
        try:
            first, wanted = byte_range(name, os.fstat(handle).st_size, offset, nbytes)
            into = allocate(wanted)
            _fill(handle, into, first, name)
        finally:
            os.close(handle)
        return into

    def mapped(self, key: str) -> mmap.mmap | None:
        """Return the file as read-only mapped pages, or None if it is missing or empty."""
        handle = self._open(key)
        if handle is None:
            return None
        try:
            return mmap.mmap(handle, 0, prot=mmap.PROT_READ) if os.fstat(handle).st_size else None
        except (OSError, ValueError) as error:
            raise SourceError(f"cannot map {self.name(key)}: {error}") from error
        finally:
            os.close(handle)

    def children(self, key: str) -> list[str]:
        """Return the names of the directories below."""
        folder = self.path / key
        try:
            return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        except OSError as error:
            raise SourceError(f"cannot list {folder}: {error.strerror}") from error

    def zarr_store(self) -> tuple[Any, str]:
        """Return a read-only local store of zarr-python."""
        return optional("zarr.storage", extra="zarr").LocalStore(self.path, read_only=True), ""

    def _open(self, key: str) -> int | None:
        try:
            return os.open(f"{self.path}/{key}", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise _forbidden(self.name(key)) from error
        except OSError as error:
            raise SourceError(f"cannot read {self.name(key)}: {error.strerror}") from error
