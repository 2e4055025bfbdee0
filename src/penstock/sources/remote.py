"""Zarr on object storage: the same decoding, with bytes fetched by obstore."""

from __future__ import annotations

import mmap
import os
from typing import Any

from penstock.arguments import whole_number
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.cache import BlockCache
from penstock.sources.object_requests import ObjectClient, Patience
from penstock.sources.scratch import Bytes
from penstock.sources.urls import is_url, redacted
from penstock.sources.zarr.source import ZarrSource
from penstock.sources.zarr.stored import Room

MOST_REQUESTS = 1024  # in flight: each has a thread
METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


class Bucket:
    """Objects under one URL, as stored bytes. Opened once in each process, not after a fork.

    Args:
        url: ``s3://bucket/path``, ``gs://``, ``az://`` or ``http(s)://``.
        concurrency: Requests in flight at once, over all threads of a process.
        patience: How long a request may take, and be tried again.
        cache: Keeps fetched chunks; metadata are always asked for anew.
        options: Credentials and settings of obstore: ``endpoint=``, ``region=``, ...
    """

    def __init__(
        self,
        url: str,
        *,
        concurrency: int,
        patience: Patience,
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
        self._patience, self._cache, self._options = patience, cache, options
        self._versions: dict[str, str] = {}
        self._clients: dict[int, ObjectClient] = {}

    def __repr__(self) -> str:
        return f"Bucket({self._shown!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clients": {}}

    def name(self, key: str) -> str:
        """The address of the object, without credentials that the URL may hold."""
        return f"{self._shown}/{key}" if key else self._shown

    def fetch(
        self, key: str, room: Room, offset: int = 0, nbytes: int | None = None
    ) -> Bytes | None:
        """Bytes of the object, from the cache or the network; None where there is none."""
        if key.rsplit("/", 1)[-1] in METADATA:
            return self._fetch_metadata(key)
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

    def mapped(self, key: str) -> mmap.mmap | None:
        """None: what is far away cannot be mapped."""
        return None

    def children(self, key: str) -> list[str]:
        """Names one level below ``key``."""
        return self._client().children(key)

    def zarr_store(self) -> Any:
        """A read-only store of zarr-python over the same objects."""
        return optional("zarr.storage", extra="remote").ObjectStore(
            self._client().store, read_only=True
        )

    def _fetch_metadata(self, key: str) -> Bytes | None:
        fetched = self._client().get(key, 0, None)
        if fetched is None:
            return None
        # chunks are cached under the version of their array: rewritten data are not mixed up
        self._versions[key.rpartition("/")[0]] = fetched.version
        return fetched.content

    def _version(self, key: str) -> str:
        versions = [v for prefix, v in sorted(self._versions.items()) if key.startswith(prefix)]
        return versions[-1] if versions else ""

    def _client(self) -> ObjectClient:
        client = self._clients.get(os.getpid())
        if client is None:
            made = ObjectClient(self.url, self.concurrency, self._patience, self._options)
            client = self._clients.setdefault(os.getpid(), made)
        return client


def open_remote(
    url: str,
    *,
    fields: list[str] | None = None,
    axis: int | str = 0,
    direct: bool = True,
    along: int | str | None = None,
    decode: bool = True,
    missing: str = "fill",
    concurrency: int = 8,
    retry_seconds: float = 60.0,
    timeout_seconds: float = 30.0,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = 10 * 10**9,
    **options: Any,
) -> ZarrSource:
    """A Zarr store on object storage as a source.

    Args:
        url: ``s3://bucket/data.zarr``, or with ``gs://``, ``az://``, ``http(s)://``.
        fields: As for ``ZarrSource``.
        axis: As for ``ZarrSource``.
        direct: As for ``ZarrSource``.
        along: As for ``ZarrSource``.
        decode: As for ``ZarrSource``.
        missing: As for ``ZarrSource``.
        concurrency: Requests in flight at once, over all threads of a process.
        retry_seconds: How long to try again when the server is gone or overloaded.
        timeout_seconds: How long one request may take.
        cache_dir: A local directory to keep fetched chunks in; none if None.
        cache_bytes: Size that directory is kept to; what was used longest ago goes first.
        options: Credentials and settings for obstore, such as ``access_key_id=``,
            ``secret_access_key=``, ``endpoint=``, ``region=``, ``skip_signature=True``.
    """
    cache = None if cache_dir is None else BlockCache(cache_dir, cache_bytes)
    patience = Patience(retry_seconds=retry_seconds, timeout_seconds=timeout_seconds)
    bucket = Bucket(url, concurrency=concurrency, patience=patience, cache=cache, options=options)
    return ZarrSource(
        bucket,
        fields=fields,
        axis=axis,
        direct=direct,
        along=along,
        decode=decode,
        missing=missing,
    )
