"""Requests to object storage: bounded in number and time, tried again, refused in a sentence."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from penstock.arguments import real_number
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.scratch import Bytes
from penstock.sources.urls import redacted

Answer = TypeVar("Answer")

LASTING = re.compile(r"status code: 4\d\d|builder error|error parsing|not supported", re.I)
MOST_SECONDS = 10.0 * 365 * 24 * 3600
NO_RANGES = "non-partial response"
NO_SUFFIXES = "not support suffix range"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request may take, and for how long a failing one is tried again."""

    retry_seconds: float
    timeout_seconds: float

    def __post_init__(self) -> None:
        for name, least in (("retry_seconds", 0.0), ("timeout_seconds", 0.001)):
            value = getattr(self, name)
            real_number(name, value, minimum=least, maximum=MOST_SECONDS, error=SourceError)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes of an object, and which version of it they are."""

    content: Bytes
    version: str


class _FirstProcess:
    """Which process has started obstore's threads: in its forked children requests would hang."""

    pid: int | None = None

    @classmethod
    def check(cls, url: str) -> None:
        cls.pid = cls.pid or os.getpid()
        if cls.pid != os.getpid():
            raise SourceError(
                f"{redacted(url)} cannot be read in a forked process after its parent has: "
                "start workers with 'spawn' or 'forkserver', or read with threads"
            )


class ObjectClient:
    """One store of obstore, for one process."""

    def __init__(
        self, url: str, concurrency: int, patience: Patience, options: dict[str, Any]
    ) -> None:
        _FirstProcess.check(url)
        self._shown, self._patience = redacted(url), patience
        self._api = optional("obstore", extra="remote")
        self._slots = threading.BoundedSemaphore(concurrency)
        self._gives_ranges = self._gives_suffixes = True
        self._never = threading.Event()  # waited for between attempts
        self.store = _opened(url, patience, options)

    def get(self, key: str, offset: int, nbytes: int | None) -> Fetched | None:
        """All of an object, or a part of it; None where there is no such object."""
        if offset == 0 and nbytes is None:
            return self._tried(key, lambda: self._get(key, None))
        if self._gives_ranges:
            try:
                return self._part(key, offset, nbytes)
            except _RangesRefused:
                self._gives_ranges = False  # some servers send whole objects only
        fetched = self._tried(key, lambda: self._get(key, None))
        if fetched is None:
            return None
        first = max(0, len(fetched.content) + offset) if offset < 0 else offset
        last = len(fetched.content) if nbytes is None else first + nbytes
        content = fetched.content[first:last]
        if nbytes is not None and content.size != nbytes:
            raise SourceError(
                f"{self._shown}/{key} is shorter than its index says: upload it again"
            )
        return Fetched(content, fetched.version)

    def _part(self, key: str, offset: int, nbytes: int | None) -> Fetched | None:
        if offset < 0 and not self._gives_suffixes:
            size = self._tried(key, lambda: int(self._api.head(self.store, key)["size"]))
            if size is None:
                return None
            offset = max(0, size + offset)
        options = {"range": _range(offset, nbytes)}
        try:
            return self._tried(key, lambda: self._get(key, options))
        except _SuffixesRefused:
            self._gives_suffixes = False  # Azure: ask for the size first
            return self._part(key, offset, nbytes)

    def children(self, key: str) -> list[str]:
        """Names one level below ``key``."""
        found = self._tried(key, lambda: self._list(key))
        if found is None:
            return []
        return sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in found["common_prefixes"])

    def _list(self, key: str) -> dict[str, Any]:
        return dict(self._api.list_with_delimiter(self.store, key or None))

    def _get(self, key: str, options: dict[str, Any] | None) -> Fetched:
        answer = self._api.get(self.store, key, options=options)
        meta = answer.meta
        version = f"{meta.get('e_tag')} {meta.get('last_modified')} {meta.get('size')}"
        return Fetched(np.frombuffer(answer.bytes(), np.uint8), version)

    def _tried(self, key: str, request: Callable[[], Answer]) -> Answer | None:
        """What ``request`` gives, tried again with growing pauses while the trouble may pass."""
        deadline = time.monotonic() + self._patience.retry_seconds
        pause = 0.1
        while True:
            _FirstProcess.check(self._shown)
            try:
                with self._slots:
                    return request()
            except FileNotFoundError:
                return None
            except (OSError, self._api.exceptions.BaseError) as error:
                # not "from error": its text may hold credentials of the URL
                problem = _problem(f"{self._shown}/{key}", error)
                if problem is not None:
                    raise problem from None
                if time.monotonic() + pause > deadline:
                    raise _gone(f"{self._shown}/{key}", error, self._patience) from None
            self._never.wait(pause)
            pause = min(2 * pause, 5.0)


class _SuffixesRefused(Exception):
    """The server does not send the last bytes of an object without knowing where they begin."""


class _RangesRefused(Exception):
    """The server sends whole objects only."""


def _range(offset: int, nbytes: int | None) -> Any:
    if offset < 0:
        return {"suffix": -offset}
    return {"offset": offset} if nbytes is None else (offset, offset + nbytes)


def _opened(url: str, patience: Patience, options: dict[str, Any]) -> Any:
    stores = optional("obstore.store", extra="remote")
    plain_http = any(str(v).startswith("http://") for v in (url, options.get("endpoint", "")))
    client = {
        "timeout": timedelta(seconds=patience.timeout_seconds),
        "connect_timeout": timedelta(seconds=min(5.0, patience.timeout_seconds)),
        "allow_http": plain_http,
        **options.get("client_options", {}),
    }
    backoff = {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    }
    retry = {
        "max_retries": 1000 if patience.retry_seconds else 0,
        "retry_timeout": timedelta(seconds=patience.retry_seconds),
        "backoff": backoff,
    }
    rest = {name: value for name, value in options.items() if name != "client_options"}
    try:
        return stores.from_url(url, client_options=client, retry_config=retry, **rest)
    except (OSError, ValueError, TypeError, stores.BaseError) as error:
        raise SourceError(f"cannot open {redacted(url)}: {_first_line(error)}") from None


def _problem(name: str, error: Exception) -> Exception | None:
    """What to raise at once; None where trying again may help."""
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


def _gone(name: str, error: Exception, patience: Patience) -> SourceError:
    return SourceError(
        f"{name} could not be read within {patience.retry_seconds:g} seconds of trying again: "
        f"{_first_line(error)}; check that the server is there, or raise retry_seconds="
    )


def _reason(text: str) -> str:
    code = re.search(r"<Code>(.*?)</Code>", text)
    status = re.search(r"status code: (\d+ [\w ]+)", text)
    first_line = text.split("\n", 1)[0]
    return redacted(code.group(1) if code else status.group(1) if status else first_line)


def _first_line(error: Exception) -> str:
    return redacted(str(error).split("\n", 1)[0].strip())
