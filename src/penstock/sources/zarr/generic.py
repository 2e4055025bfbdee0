"""Any other array, read by zarr-python: other codecs, transposes, filters, structured dtypes."""

from __future__ import annotations

import os
import threading
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.extras import optional
from penstock.fingerprints import digest, row_bytes, sampled_blocks
from penstock.sources.base import Field, Rows
from penstock.sources.storage import UNREADABLE, ByteStore, DirectoryStore, one_line
from penstock.sources.zarr.chunks import Crop, sample_shape, samples_first
from penstock.sources.zarr.hierarchy import MissingChunks

_LOCKS: dict[int, threading.Lock] = {}


class _ZarrsProcess:
    """The process that has started the threads of ``zarrs``; forked children do not have them."""

    pid: int | None = None

    @classmethod
    def pipeline(cls) -> str | None:
        """Return the codec pipeline to use in this process, or None for zarr-python's own."""
        try:
            optional("zarrs", extra="zarr")
        except ImportError:
            return None
        cls.pid = cls.pid or os.getpid()
        return "zarrs.ZarrsCodecPipeline" if cls.pid == os.getpid() else None


class GenericArray:
    """An array read by zarr-python, with the ``zarrs`` codec pipeline where that is possible."""

    def __init__(
        self,
        store: ByteStore,
        key: str,
        axis: int,
        missing: MissingChunks,
        why: str,
        crop: Crop | None = None,
    ) -> None:
        self._store, self._key, self._axis = store, key, axis
        self.how = f"zarr-python ({why})"
        self._missing = missing
        self._opened: tuple[int, Any, _MissingSeen] | None = None
        array, _ = _open(store, key, pipeline=None)
        shape, name = tuple(array.shape), store.name(key.rstrip("/"))
        if missing.refused and array.shards is not None:
            raise SourceError(
                f"array {name} is read by zarr-python ({why}), which does not "
                "report missing chunks of a shard: open it with missing='fill'"
            )
        self._crop = crop or tuple((0, n) for n in shape)
        self._stored_dtype = np.dtype(array.dtype)
        if self._stored_dtype.hasobject or self._stored_dtype.kind == "T":
            raise SourceError(
                f"array {name} holds items of variable size ({array.dtype}), which "
                "cannot be samples: leave it out with open_source(..., fields=[...])"
            )
        self.samples = shape[axis]
        dtype = self._stored_dtype.newbyteorder("=")
        self.field = Field(sample_shape(shape, axis, self._crop), dtype)
        self.chunks = samples_first(tuple(map(int, array.chunks)), axis)
        self.chunk_samples = self.chunks[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, start: int, stop: int, out: Rows, box: Crop | None = None) -> None:
        """Fill ``out`` with samples ``start:stop``, of each only the part ``box``."""
        others = self._crop[: self._axis] + self._crop[self._axis + 1 :]
        if box is not None:
            parts = zip(others, box, strict=True)
            others = tuple((begin + low, begin + high) for (begin, _), (low, high) in parts)
        spans = [*others[: self._axis], (start, stop), *others[self._axis :]]
        chosen = tuple(slice(first, last) for first, last in spans)
        as_stored = self._axis == 0 and self.field.dtype == self._stored_dtype
        if as_stored and out.flags.c_contiguous:
            self._select(chosen, out)
            return
        rows = np.empty([last - first for first, last in spans], self._stored_dtype)
        self._select(chosen, rows)
        np.copyto(out, np.moveaxis(rows, self._axis, 0))

    def _select(self, chosen: tuple[slice, ...], into: Rows) -> None:
        if not into.size:
            return
        buffer = optional("zarr.buffer", extra="zarr").cpu.NDBuffer(into)
        array, seen = self._array()
        before = seen.missing
        try:
            array.get_basic_selection(chosen, out=buffer)
        except UNREADABLE as error:
            name, samples = self._store.name(self._key.rstrip("/")), chosen[self._axis]
            raise SourceError(
                f"zarr-python cannot read {name} at samples {samples.start}:{samples.stop}: "
                f"{one_line(error)}"
            ) from None
        if seen.missing != before:
            self._missing.report(seen.last)
            self._missing.verify()
        elif not seen.complete:
            self._missing.verify()

    def view(self, start: int, stop: int) -> Rows | None:
        """Return None: zarr-python always copies."""
        return None

    def fingerprint(self) -> str:
        """Return an identity: shape, dtype, chunking and a few decoded samples."""
        facts = [self.samples, self._crop, self._stored_dtype.str, self.chunk_samples, self._axis]
        row = np.empty((1, *self.field.shape), self.field.dtype)
        parts = []
        for sample in sampled_blocks(self.samples):
            self.read(sample, sample + 1, row)
            parts.append(row_bytes(row))
        return digest(facts, parts)

    def _array(self) -> tuple[Any, _MissingSeen]:
        if self._opened is None or self._opened[0] != os.getpid():
            dtype = self.field.dtype
            # zarrs would open its own connections to a server, without our retries, and it does
            # not report chunks that are missing
            local = isinstance(self._store, DirectoryStore) and not self._missing.refused
            plain = local and dtype == self._stored_dtype and dtype.kind in "biufc"
            pipeline = _ZarrsProcess.pipeline() if plain else None
            self._opened = (os.getpid(), *_open(self._store, self._key, pipeline))
        return self._opened[1:]


@dataclass(slots=True)
class _MissingSeen:
    """Missing objects that zarr-python has asked for; ``complete`` if it reports all of them."""

    complete: bool
    missing: int = 0
    last: str = ""


@cache
def _observed_store() -> Any:
    """Return a store class that counts the missing objects that were asked for."""
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


def _open_lock() -> threading.Lock:
    # zarr-python's settings are global; a lock per process, since a fork may inherit it locked
    return _LOCKS.setdefault(os.getpid(), threading.Lock())


def _open(store: ByteStore, key: str, pipeline: str | None) -> tuple[Any, _MissingSeen]:
    zarr = optional("zarr", extra="zarr")
    settings = {} if pipeline is None else {"codec_pipeline.path": pipeline}
    seen = _MissingSeen(complete=pipeline is None)
    try:
        opened, prefix = store.zarr_store()
        if pipeline is None:
            opened = _observed_store()(opened)
            opened.seen = seen
        # the pipeline is chosen when an array is opened; the setting is restored at once
        with _open_lock(), zarr.config.set(settings), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about fallbacks inside of zarrs
            return zarr.open_array(opened, path=(prefix + key).strip("/"), mode="r"), seen
    except UNREADABLE as error:
        raise SourceError(
            f"zarr-python cannot open {store.name(key.rstrip('/'))}: {one_line(error)}"
        ) from None
