"""Object storage: Zarr stores and single files, with bytes fetched by obstore."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from penstock.arguments import real_number, whole_number
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.cache import BlockCache
from penstock.sources.storage import (
    Allocate,
    ByteStore,
    StoredFile,
    byte_range,
    is_first_process,
    is_url,
    new_memory,
    redacted,
)
from penstock.sources.thread_buffers import Bytes

Answer = TypeVar("Answer")

MOST_REQUESTS = 1024  # in flight: each has a thread
MOST_SECONDS = 10.0 * 365 * 24 * 3600
TOGETHER_BYTES = 4 << 20  # takes longer to transfer than to request
GAP_BYTES = 1 << 18  # takes less time to transfer than to request
METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
SINGLE_FILES = (".npy", ".parquet", ".pq")
# texts of obstore's errors: a retry does not help; the server sends whole objects only;
# the server sends the last bytes of an object only by their offset
LASTING = re.compile(r"status code: 4\d\d|builder error|error parsing|not supported", re.I)
NO_RANGES = "non-partial response"
NO_SUFFIXES = "not support suffix range"


def open_remote(url: str, **options: Any) -> ObjectStore | ObjectFile:
    """Return a ``.npy`` or a Parquet file on object storage, or the store of anything else there.

    Args:
        url: ``s3://bucket/data.zarr``, or with ``gs://``, ``az://``, ``http(s)://``.
        options: Of `ObjectStore`.
    """
    plain, asked, _ = url.partition("?")
    folder, _, file = plain.rstrip("/").rpartition("/")
    if not file.lower().endswith(SINGLE_FILES):
        return ObjectStore(url, **options)
    if asked:
        raise SourceError(
            f"{redacted(url)} has a query, so ranges of the file cannot be read: pass "
            "credentials as options, such as access_key_id="
        )
    return ObjectFile(ObjectStore(folder, **options), file)


class Fetched(NamedTuple):
    """Bytes of an object, and which version of it they are."""

    content: Bytes
    version: str


class _Client(NamedTuple):
    """The store of obstore in one process, and the limit of requests to it."""

    store: Any
    requests: threading.BoundedSemaphore


class ObjectStore(ByteStore):
    """Objects under one URL, as a `ByteStore`. Opened once in each process, not after a fork.

    Requests that fail are repeated with growing pauses while that may help.

    Args:
        url: ``s3://bucket/path``, ``gs://``, ``az://`` or ``http(s)://``.
        concurrency: Requests in flight at once, over all threads of a process.
        retry_seconds: How long to try again when the server is unreachable or overloaded.
        timeout_seconds: How long one request may take.
        cache_dir: A local directory for fetched chunks; no cache if None. Metadata is always
            fetched again.
        cache_bytes: The size limit of that directory; the least recently used chunks are
            deleted first.
        options: Credentials and settings of obstore, such as ``access_key_id=``,
            ``secret_access_key=``, ``endpoint=``, ``region=``, ``skip_signature=True``.
    """

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = 8,
        retry_seconds: float = 60.0,
        timeout_seconds: float = 30.0,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = 10 * 10**9,
        **options: Any,
    ) -> None:
        if not is_url(url):
            raise SourceError(f"{redacted(url)} is not a URL of object storage")
        self.url = url.rstrip("/")
        self._shown = redacted(self.url)
        self.concurrency = whole_number(
            "concurrency", concurrency, minimum=1, maximum=MOST_REQUESTS, error=SourceError
        )
        seconds = partial(real_number, maximum=MOST_SECONDS, error=SourceError)
        self._retry = seconds("retry_seconds", retry_seconds, minimum=0.0)
        self._timeout = seconds("timeout_seconds", timeout_seconds, minimum=0.001)
        self._cache = None if cache_dir is None else BlockCache(cache_dir, cache_bytes)
        if self._cache is None:  # a cache stores single chunks, so that other reads find them
            self.together_bytes, self.gap_bytes = TOGETHER_BYTES, GAP_BYTES
        else:
            self.together_bytes = 0
        self._options = options
        self._versions: dict[str, str] = {}  # of the metadata of each array, by its path
        self._clients: dict[int, _Client] = {}  # by process
        self._gives_ranges = self._gives_suffixes = True

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
        if last not in METADATA:
            # chunks are cached under the version of their array, so that a rewritten array
            # is never mixed with cached chunks of the old one
            versions = [v for path, v in sorted(self._versions.items()) if key.startswith(path)]
            found = self._cached(key, offset, nbytes, versions[-1] if versions else "")
        else:
            found = self._get(key, 0, None)
            if found is not None:
                self._versions[folder] = found.version
        return None if found is None else found.content

    def fetch_version(self, key: str, offset: int, nbytes: int, version: str) -> Bytes:
        """Return bytes of one version of an object, from the cache or the network."""
        found = self._cached(key, offset, nbytes, version, exactly=True)
        if found is None:
            raise SourceError(
                f"{self.name(key)} has changed or was deleted while it was read: open it again"
            )
        return found.content

    def _cached(
        self, key: str, offset: int, nbytes: int | None, version: str, *, exactly: bool = False
    ) -> Fetched | None:
        """Return bytes, from the cache if possible; None if missing, or of another version."""
        name = f"{self.url} {version} {key} {offset} {nbytes}"
        content = None if self._cache is None else self._cache.get(name)
        if content is not None:
            return Fetched(content, version)
        fetched = self._get(key, offset, nbytes)
        if fetched is None or (exactly and fetched.version != version):
            return None
        if self._cache is not None:
            self._cache.put(name, fetched.content.data)
        return fetched

    def head(self, key: str) -> tuple[int, str] | None:
        """Return size and version of an object, or None if there is no such object."""
        meta = self._request(key, lambda api, store: api.head(store, key))
        return None if meta is None else (int(meta["size"]), _version(meta))

    def children(self, key: str) -> list[str]:
        """Return the names one level below ``key``."""
        found = self._request(
            key, lambda api, store: dict(api.list_with_delimiter(store, key or None))
        )
        prefixes = [] if found is None else found["common_prefixes"]
        return sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)

    def zarr_store(self) -> tuple[Any, str]:
        """Return a read-only store of zarr-python over the same objects."""
        storage = optional("zarr.storage", extra="remote")
        return storage.ObjectStore(self._client().store, read_only=True), ""

    # -- requests

    def _client(self) -> _Client:
        if not is_first_process("obstore"):
            raise SourceError(
                f"{self._shown} cannot be read in a forked process after its parent has read "
                "it: start workers with 'spawn' or 'forkserver', or read with threads"
            )
        client = self._clients.get(os.getpid())
        if client is None:
            opened = _open_store(self.url, self._retry, self._timeout, self._options)
            made = _Client(opened, threading.BoundedSemaphore(self.concurrency))
            client = self._clients.setdefault(os.getpid(), made)
        return client

    def _get(self, key: str, offset: int, nbytes: int | None) -> Fetched | None:
        """Return an object or a part of it, or None if there is no such object."""
        if self._gives_ranges and (offset or nbytes is not None):
            try:
                return self._get_part(key, offset, nbytes)
            except _RangesRefused:
                self._gives_ranges = False  # some servers send whole objects only
        fetched = self._request(key, lambda api, store: _whole(api.get(store, key)))
        if fetched is None:
            return None
        first, wanted = byte_range(self.name(key), len(fetched.content), offset, nbytes)
        return Fetched(fetched.content[first : first + wanted], fetched.version)

    def _get_part(self, key: str, offset: int, nbytes: int | None) -> Fetched | None:
        if offset < 0 and not self._gives_suffixes:
            found = self.head(key)
            if found is None:
                return None
            offset = max(0, found[0] + offset)
        wanted: Any = {"suffix": -offset}
        if offset >= 0:
            wanted = {"offset": offset} if nbytes is None else (offset, offset + nbytes)
        options = {"range": wanted}
        try:
            return self._request(
                key, lambda api, store: _whole(api.get(store, key, options=options))
            )
        except _SuffixesRefused:
            self._gives_suffixes = False  # Azure: ask for the size first
            return self._get_part(key, offset, nbytes)

    def _request(self, key: str, request: Callable[[Any, Any], Answer]) -> Answer | None:
        """Return what ``request`` returns; repeat it with growing pauses while that may help."""
        api, never = optional("obstore", extra="remote"), threading.Event()
        deadline, pause, name = time.monotonic() + self._retry, 0.1, f"{self._shown}/{key}"
        while True:
            client = self._client()
            try:
                with client.requests:
                    return request(api, client.store)
            except FileNotFoundError:
                return None
            except (OSError, api.exceptions.BaseError) as error:
                # not "from error": its text may hold credentials of the URL
                problem = _lasting_problem(name, error)
                if problem is not None:
                    raise problem from None
                if time.monotonic() + pause > deadline:
                    raise SourceError(
                        f"{name} could not be read within {self._retry:g} seconds of retries: "
                        f"{_first_line(error)}; check that the server is reachable, or raise "
                        "retry_seconds="
                    ) from None
            never.wait(pause)
            pause = min(2 * pause, 5.0)


class ObjectFile(StoredFile):
    """One object, read by ranges of bytes; see `storage.StoredFile`.

    Args:
        store: The store of the object.
        key: Its name there.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store, self._key = store, key
        self.name, self.in_flight = store.name(key), store.concurrency
        found = store.head(key)
        if found is None:
            raise SourceError(f"there is nothing at {self.name}")
        self.size, self.version = found

    def read_at(self, offset: int, nbytes: int) -> Bytes:
        """Return bytes; raise ``SourceError`` if the object has changed since it was opened."""
        if not nbytes:
            return new_memory(0)
        return self._store.fetch_version(self._key, offset, nbytes, self.version)


def _whole(answer: Any) -> Fetched:
    return Fetched(np.frombuffer(answer.bytes(), np.uint8), _version(answer.meta))


def _version(meta: Mapping[str, Any]) -> str:
    return f"{meta.get('e_tag')} {meta.get('last_modified')} {meta.get('size')}"


class _SuffixesRefused(Exception):
    pass


class _RangesRefused(Exception):
    pass


def _open_store(url: str, retry: float, timeout: float, options: dict[str, Any]) -> Any:
    stores = optional("obstore.store", extra="remote")
    plain_http = any(str(v).startswith("http://") for v in (url, options.get("endpoint", "")))
    client = {
        "timeout": timedelta(seconds=timeout),
        "connect_timeout": timedelta(seconds=min(5.0, timeout)),
        "allow_http": plain_http,
        **options.get("client_options", {}),
    }
    retries = {
        "max_retries": 1000 if retry else 0,
        "retry_timeout": timedelta(seconds=retry),
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
