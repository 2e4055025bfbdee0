"""Object storage: Zarr stores and single files, with bytes fetched by obstore."""

from __future__ import annotations

import io
import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import numpy as np

from penstock.arguments import real_number, whole_number
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.fingerprints import digest
from penstock.sources.anndata import AnnDataSource
from penstock.sources.arrow import ArrowSource
from penstock.sources.base import Arrays, BaseSource, Field, Indices, Rows, Source, sampled_rows
from penstock.sources.cache import BlockCache
from penstock.sources.npy import checked_header
from penstock.sources.ragged_rows import take_by_blocks
from penstock.sources.storage import Allocate, StoredFile, is_url, redacted
from penstock.sources.thread_buffers import Bytes
from penstock.sources.zarr.hierarchy import is_anndata
from penstock.sources.zarr.source import ZarrSource

Answer = TypeVar("Answer")

MOST_REQUESTS = 1024  # in flight: each has a thread
NPY_HEADER_BYTES = 1 << 16  # read at once; headers have 128 bytes as a rule
MOST_SECONDS = 10.0 * 365 * 24 * 3600
METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
SOURCE_OPTIONS = (
    *("fields", "axis", "along", "direct", "decode", "missing", "columns", "dense", "dtype"),
)
# texts of obstore's errors: trying again does not help; the server sends whole objects only;
# the server does not send the last bytes of an object without knowing where they begin
LASTING = re.compile(r"status code: 4\d\d|builder error|error parsing|not supported", re.I)
NO_RANGES = "non-partial response"
NO_SUFFIXES = "not support suffix range"


def open_remote(
    url: str,
    *,
    concurrency: int = 8,
    retry_seconds: float = 60.0,
    timeout_seconds: float = 30.0,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = 10 * 10**9,
    **options: Any,
) -> Source:
    """Return a source over a Zarr store, a ``.npy`` or a Parquet file on object storage.

    Args:
        url: ``s3://bucket/data.zarr``, or with ``gs://``, ``az://``, ``http(s)://``.
        concurrency: Requests in flight at once, over all threads of a process.
        retry_seconds: How long to try again when the server is unreachable or overloaded.
        timeout_seconds: How long one request may take.
        cache_dir: A local directory for fetched chunks; no cache if None.
        cache_bytes: The size limit of that directory; the least recently used chunks are
            deleted first.
        options: Options of the source, for ``ZarrSource`` ``fields=``, ``axis=``, ``along=``,
            ``direct=``, ``decode=``, ``missing=``, and credentials and settings of obstore, such as
            ``access_key_id=``, ``secret_access_key=``, ``endpoint=``, ``region=``,
            ``skip_signature=True``.
    """
    cache = None if cache_dir is None else BlockCache(cache_dir, cache_bytes)
    retry = RetryPolicy(retry_seconds=retry_seconds, timeout_seconds=timeout_seconds)
    of_source = {name: options.pop(name) for name in SOURCE_OPTIONS if name in options}
    plain, asked, _ = str(url).partition("?")
    folder, _, file = plain.rstrip("/").rpartition("/")
    suffix = file[file.rfind(".") :].lower()
    single = suffix in (".npy", ".parquet", ".pq")
    if single and asked:
        raise SourceError(
            f"{redacted(url)} has a query, which ranges of a file cannot be read with: pass "
            "credentials as options, such as access_key_id="
        )
    place = folder if single else url
    store = ObjectStore(place, concurrency=concurrency, retry=retry, cache=cache, options=options)
    if single:
        return _open_file(ObjectFile(store, file), suffix, of_source)
    if is_anndata(store):
        return AnnDataSource(store, **_for_table(store.name(""), of_source))
    of_source.pop("dense", None)
    return ZarrSource(store, **of_source)


def _open_file(file: ObjectFile, suffix: str, given: dict[str, Any]) -> Source:
    if suffix != ".npy":
        return ArrowSource(file, **_for_table(file.name, given))
    wrong = [name for name, value in given.items() if name != "decode" and value]
    if wrong:
        raise SourceError(f"{file.name} is one array: leave out {wrong[0]}=")
    return RemoteNpySource(file)


def _for_table(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a table takes."""
    columns = given.pop("fields", None) or given.pop("columns", None)
    found = {} if columns is None else {"columns": columns}
    found |= {"dense": given.pop("dense")} if "dense" in given else {}
    given.pop("decode", None)
    if any(given.values()):
        raise SourceError(f"{name} takes no options, got {', '.join(given)}")
    return found


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long one request may take, and how long a failing one is repeated, in seconds."""

    retry_seconds: float
    timeout_seconds: float

    def __post_init__(self) -> None:
        for name, least in (("retry_seconds", 0.0), ("timeout_seconds", 0.001)):
            value = getattr(self, name)
            real_number(name, value, minimum=least, maximum=MOST_SECONDS, error=SourceError)


class ObjectStore:
    """Objects under one URL, as a `ByteStore`. Opened once in each process, not after a fork.

    Args:
        url: ``s3://bucket/path``, ``gs://``, ``az://`` or ``http(s)://``.
        concurrency: Requests in flight at once, over all threads of a process.
        retry: How long a request may take, and be repeated.
        cache: Where fetched chunks are saved; metadata is always fetched again.
        options: Credentials and settings of obstore: ``endpoint=``, ``region=``, ...
    """

    def __init__(
        self,
        url: str,
        *,
        concurrency: int,
        retry: RetryPolicy,
        cache: BlockCache | None,
        options: dict[str, Any],
    ) -> None:
        if not isinstance(url, str) or not is_url(url):
            raise SourceError(f"{redacted(str(url))} is not a URL of object storage")
        self.url = url.rstrip("/")
        self._shown = redacted(self.url)
        self.concurrency = whole_number(
            "concurrency", concurrency, minimum=1, maximum=MOST_REQUESTS, error=SourceError
        )
        self._retry, self._cache, self._options = retry, cache, options
        self._versions: dict[str, str] = {}
        self._clients: dict[int, ObjectClient] = {}

    def __repr__(self) -> str:
        return f"ObjectStore({self._shown!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clients": {}}

    def name(self, key: str) -> str:
        """Return the address of the object, without credentials that the URL may hold."""
        return f"{self._shown}/{key}" if key else self._shown

    def fetch(
        self, key: str, allocate: Allocate, offset: int = 0, nbytes: int | None = None
    ) -> Bytes | None:
        """Return bytes of the object from the cache or the network, or None if it is missing."""
        folder, _, last = key.rpartition("/")
        if last in METADATA:
            fetched = self._client().get(key, 0, None)
            if fetched is None:
                return None
            # chunks are cached under the version of their array, so that a rewritten array
            # is never mixed with cached chunks of the old one
            self._versions[folder] = fetched.version
            return fetched.content
        cached = f"{self.url} {self._version(key)} {key} {offset} {nbytes}"
        found = None if self._cache is None else self._cache.get(cached)
        if found is not None:
            return found
        fetched = self._client().get(key, offset, nbytes)
        if fetched is None:
            return None
        if self._cache is not None:
            self._cache.put(cached, fetched.content.data)
        return fetched.content

    def head(self, key: str) -> tuple[int, str]:
        """Return size and version of an object."""
        found = self._client().head(key)
        if found is None:
            raise SourceError(f"there is nothing at {self.name(key)}")
        return found

    def fetch_version(self, key: str, offset: int, nbytes: int, version: str) -> Bytes:
        """Return bytes of one version of an object, from the cache or the network."""
        cached = f"{self.url} {version} {key} {offset} {nbytes}"
        found = None if self._cache is None else self._cache.get(cached)
        if found is not None:
            return found
        fetched = self._client().get(key, offset, nbytes)
        if fetched is None or fetched.version != version:
            raise SourceError(
                f"{self.name(key)} has changed or was deleted while it was read: open it again"
            )
        if self._cache is not None:
            self._cache.put(cached, fetched.content.data)
        return fetched.content

    def mapped(self, key: str) -> mmap.mmap | None:
        """Return None: remote objects cannot be mapped."""
        return None

    def children(self, key: str) -> list[str]:
        """Return the names one level below ``key``."""
        return self._client().children(key)

    def zarr_store(self) -> tuple[Any, str]:
        """Return a read-only store of zarr-python over the same objects."""
        storage = optional("zarr.storage", extra="remote")
        return storage.ObjectStore(self._client().store, read_only=True), ""

    def _version(self, key: str) -> str:
        versions = [v for prefix, v in sorted(self._versions.items()) if key.startswith(prefix)]
        return versions[-1] if versions else ""

    def _client(self) -> ObjectClient:
        client = self._clients.get(os.getpid())
        if client is None:
            made = ObjectClient(self.url, self.concurrency, self._retry, self._options)
            client = self._clients.setdefault(os.getpid(), made)
        return client


class ObjectFile:
    """One object, read by ranges of bytes; see `storage.StoredFile`.

    Args:
        store: Where it is.
        key: Its name there.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store, self._key = store, key
        self.name, self.in_flight = store.name(key), store.concurrency
        self.size, self.version = store.head(key)

    def read_at(self, offset: int, nbytes: int) -> Bytes:
        """Return bytes; raise ``SourceError`` if the object has changed since it was opened."""
        return self._store.fetch_version(self._key, offset, nbytes, self.version)


class RemoteNpySource(BaseSource):
    """One array in a ``.npy`` file on object storage: ranges of samples are ranges of bytes.

    Args:
        file: The file.
    """

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        head = file.read_at(0, min(file.size, NPY_HEADER_BYTES)) if file.size else b""
        self._header = checked_header(io.BytesIO(bytes(head)), file.size, file.name)
        if not self._header.is_native:
            raise SourceError(
                f"{file.name} is in Fortran order or of another byte order: save it again with "
                "numpy.save(path, numpy.ascontiguousarray(array))"
            )
        shape = self._header.shape
        super().__init__(shape[0], {"": Field(shape[1:], self._header.dtype)})
        self.in_flight = file.in_flight

    def __repr__(self) -> str:
        return f"RemoteNpySource({self._file.name!r}, {len(self)} samples)"

    def fingerprint(self) -> str:
        """Return an identity of the data: the same as that of the file on a local disk."""
        head = self._header
        rows = sampled_rows(len(self), self.block_samples, lambda a, b: [self._rows(a, b)])
        return digest([list(head.shape), head.dtype.str, head.fortran], rows)

    def _rows(self, start: int, stop: int) -> Rows:
        each = self._fields[""].nbytes
        if not each * (stop - start):
            return np.empty((stop - start, *self._fields[""].shape), self._header.dtype)
        raw = self._file.read_at(self._header.offset + start * each, each * (stop - start))
        return raw.view(self._header.dtype).reshape(stop - start, *self._fields[""].shape)

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        for rows in out.values():
            np.copyto(rows, self._rows(start, stop))

    def _take(self, indices: Indices, out: Arrays) -> None:
        take_by_blocks(self, indices, out, self.block_samples)


class Fetched(NamedTuple):
    """Bytes of an object, and which version of it they are."""

    content: Bytes
    version: str


class _FirstProcess:
    """The process that has started obstore's threads: in its forked children requests hang."""

    pid: int | None = None

    @classmethod
    def check(cls, url: str) -> None:
        cls.pid = cls.pid or os.getpid()
        if cls.pid != os.getpid():
            raise SourceError(
                f"{redacted(url)} cannot be read in a forked process after its parent has read "
                "it: start workers with 'spawn' or 'forkserver', or read with threads"
            )


class ObjectClient:
    """A client of obstore for one process: limits requests, and repeats those that fail."""

    def __init__(
        self, url: str, concurrency: int, retry: RetryPolicy, options: dict[str, Any]
    ) -> None:
        _FirstProcess.check(url)
        self._shown, self._retry = redacted(url), retry
        self._api = optional("obstore", extra="remote")
        self._requests = threading.BoundedSemaphore(concurrency)
        self._gives_ranges = self._gives_suffixes = True
        self._never = threading.Event()  # waited for between attempts
        self.store = _open_store(url, retry, options)

    def get(self, key: str, offset: int, nbytes: int | None) -> Fetched | None:
        """Return an object or a part of it, or None if there is no such object."""
        if offset == 0 and nbytes is None:
            return self._request(key, lambda: self._get(key, None))
        if self._gives_ranges:
            try:
                return self._get_part(key, offset, nbytes)
            except _RangesRefused:
                self._gives_ranges = False  # some servers send whole objects only
        fetched = self._request(key, lambda: self._get(key, None))
        if fetched is None:
            return None
        size = len(fetched.content)
        first = max(0, size + offset) if offset < 0 else offset
        content = fetched.content[first : size if nbytes is None else first + nbytes]
        if nbytes is not None and content.size != nbytes:
            raise SourceError(
                f"{self._shown}/{key} is shorter than its index says: upload it again"
            )
        return Fetched(content, fetched.version)

    def head(self, key: str) -> tuple[int, str] | None:
        """Return size and version of an object, or None if there is no such object."""
        meta = self._request(key, lambda: self._api.head(self.store, key))
        return None if meta is None else (int(meta["size"]), _version(meta))

    def children(self, key: str) -> list[str]:
        """Return the names one level below ``key``."""
        found = self._request(
            key, lambda: dict(self._api.list_with_delimiter(self.store, key or None))
        )
        prefixes = [] if found is None else found["common_prefixes"]
        return sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)

    def _get_part(self, key: str, offset: int, nbytes: int | None) -> Fetched | None:
        if offset < 0 and not self._gives_suffixes:
            size = self._request(key, lambda: int(self._api.head(self.store, key)["size"]))
            if size is None:
                return None
            offset = max(0, size + offset)
        wanted: Any = {"suffix": -offset}
        if offset >= 0:
            wanted = {"offset": offset} if nbytes is None else (offset, offset + nbytes)
        try:
            return self._request(key, lambda: self._get(key, {"range": wanted}))
        except _SuffixesRefused:
            self._gives_suffixes = False  # Azure: ask for the size first
            return self._get_part(key, offset, nbytes)

    def _get(self, key: str, options: dict[str, Any] | None) -> Fetched:
        answer = self._api.get(self.store, key, options=options)
        return Fetched(np.frombuffer(answer.bytes(), np.uint8), _version(answer.meta))

    def _request(self, key: str, request: Callable[[], Answer]) -> Answer | None:
        """Return what ``request`` returns; repeat it with growing pauses while that may help."""
        deadline = time.monotonic() + self._retry.retry_seconds
        pause, name = 0.1, f"{self._shown}/{key}"
        while True:
            _FirstProcess.check(self._shown)
            try:
                with self._requests:
                    return request()
            except FileNotFoundError:
                return None
            except (OSError, self._api.exceptions.BaseError) as error:
                # not "from error": its text may hold credentials of the URL
                problem = _lasting_problem(name, error)
                if problem is not None:
                    raise problem from None
                if time.monotonic() + pause > deadline:
                    raise SourceError(
                        f"{name} could not be read within {self._retry.retry_seconds:g} seconds "
                        f"of trying again: {_first_line(error)}; check that the server is "
                        "reachable, or raise retry_seconds="
                    ) from None
            self._never.wait(pause)
            pause = min(2 * pause, 5.0)


def _version(meta: Mapping[str, Any]) -> str:
    return f"{meta.get('e_tag')} {meta.get('last_modified')} {meta.get('size')}"


class _SuffixesRefused(Exception):
    pass


class _RangesRefused(Exception):
    pass


def _open_store(url: str, retry: RetryPolicy, options: dict[str, Any]) -> Any:
    stores = optional("obstore.store", extra="remote")
    plain_http = any(str(v).startswith("http://") for v in (url, options.get("endpoint", "")))
    client = {
        "timeout": timedelta(seconds=retry.timeout_seconds),
        "connect_timeout": timedelta(seconds=min(5.0, retry.timeout_seconds)),
        "allow_http": plain_http,
        **options.get("client_options", {}),
    }
    retries = {
        "max_retries": 1000 if retry.retry_seconds else 0,
        "retry_timeout": timedelta(seconds=retry.retry_seconds),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=5),
            "base": 2,
        },
    }
    rest = {name: value for name, value in options.items() if name != "client_options"}
    try:
        return stores.from_url(url, client_options=client, retry_config=retries, **rest)
    except (OSError, ValueError, TypeError, stores.BaseError) as error:
        raise SourceError(f"cannot open {redacted(url)}: {_first_line(error)}") from None


def _lasting_problem(name: str, error: Exception) -> Exception | None:
    """Return what to raise at once, or None if trying again may help."""
    text, kind = str(error), type(error).__name__
    if NO_RANGES in text:
        return _RangesRefused()
    if NO_SUFFIXES in text:
        return _SuffixesRefused()
    if kind in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError"):
        return SourceError(
            f"{name} may not be read: the server refuses the credentials ({_reason(text)}); "
            "check access_key_id= and secret_access_key=, or use skip_signature=True for open data"
        )
    if LASTING.search(text):
        return SourceError(f"{name} cannot be read: {_reason(text)}")
    return None


def _reason(text: str) -> str:
    found = re.search(r"<Code>(.*?)</Code>", text) or re.search(r"status code: (\d+ [\w ]+)", text)
    return redacted(found.group(1) if found else text.split("\n", 1)[0])


def _first_line(error: Exception) -> str:
    return redacted(str(error).split("\n", 1)[0].strip())
