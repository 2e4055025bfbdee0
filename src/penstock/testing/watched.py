"""A source that is watched: what is read of it, when, and what happens then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.sources import open_source
from penstock.sources.base import Arrays, Field
from penstock.sources.combine import seams_of


class WatchedSource:
    """Another source, with every range that is read of it noted, and a hook before each read.

    The hook may count, wait for an event, or raise: a slow, hanging or broken storage.

    >>> source = WatchedSource(np.arange(10), block_samples=5)
    >>> source.read(0, 5, {"": np.empty(5, np.int64)})
    >>> source.reads
    [(0, 5)]
    """

    def __init__(
        self,
        source: Any,
        before_read: Callable[[int, int], object] = lambda start, stop: None,
        *,
        block_samples: int | None = None,
    ) -> None:
        self._source, self.before_read = open_source(source), before_read
        self._block = block_samples or self._source.block_samples
        self._lock = threading.Lock()
        self.reads: list[tuple[int, int]] = []

    @property
    def fields(self) -> Mapping[str, Field]:
        """Those of the source."""
        return self._source.fields

    @property
    def block_samples(self) -> int:
        """That of the source, or what was given."""
        return self._block

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return f"WatchedSource({self._source!r})"

    @property
    def seams(self) -> list[int]:
        """Those of the source."""
        return seams_of(self._source)

    def fingerprint(self) -> str:
        """That of the source."""
        return self._source.fingerprint()

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Note the range, call the hook, read."""
        with self._lock:
            self.reads.append((start, stop))
        self.before_read(start, stop)
        self._source.read(start, stop, out)

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Those samples, unwatched."""
        self._source.take(indices, out)
