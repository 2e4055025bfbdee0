"""Any other array, read by zarr-python: other codecs, transposes, filters, structured dtypes."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.array_source import Box
from penstock.sources.base import Rows
from penstock.sources.sliceable import SliceableArray, library_lock
from penstock.sources.storage import ByteStore, DirectoryStore, is_first_process, reading
from penstock.sources.zarr.hierarchy import MissingChunks


class GenericArray(SliceableArray):
    """An array read by zarr-python, with the ``zarrs`` codec pipeline where that is possible."""

    def __init__(
        self,
        store: ByteStore,
        key: str,
        missing: MissingChunks,
        why: str,
        axis: int,
    ) -> None:
        self._store, self._key, self._missing = store, key, missing
        self._opened: tuple[int, Any, _MissingSeen | None] | None = None
        (array, _), name = _open(store, key, pipeline=None), store.name(key.rstrip("/"))
        if missing.refused and array.shards is not None:
            raise SourceError(
                f"array {name} is read by zarr-python ({why}), which does not "
                "report missing chunks of a shard: open it with missing='fill'"
            )
        how = f"zarr-python ({why})"
        super().__init__(array, axis, name=name, how=how, chunks=array.chunks)
        self._array = None  # each process opens its own

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _fill(self, key: tuple[slice, ...], out: Rows) -> None:
        as_stored = self._axis == 0 and self.field.dtype == self._stored
        if as_stored and out.flags.c_contiguous:
            self._select(key, out)
            return
        rows = np.empty([part.stop - part.start for part in key], self._stored)
        self._select(key, rows)
        np.copyto(out, np.moveaxis(rows, self._axis, 0))

    def _select(self, key: tuple[slice, ...], into: Rows) -> None:
        if not into.size:
            return
        buffer = optional("zarr.buffer", extra="zarr").cpu.NDBuffer(into)
        array, seen = self._array_here()
        before = 0 if seen is None else seen.missing
        array.get_basic_selection(key, out=buffer)
        if seen is not None and seen.missing != before:
            self._missing.report(seen.last)
        if seen is None or seen.missing != before:
            self._missing.verify()

    def _facts(self, box: Box) -> list[object]:
        parts = list(box)
        parts.insert(self._axis, (0, self.samples))
        return [self.samples, parts, self._stored.str, self.chunk_samples, self._axis]

    def _array_here(self) -> tuple[Any, _MissingSeen | None]:
        if self._opened is None or self._opened[0] != os.getpid():
            # zarrs would open its own connections to a server, without our retries, and it does
            # not report chunks that are missing
            local = isinstance(self._store, DirectoryStore) and not self._missing.refused
            plain = self.field.dtype == self._stored and self._stored.kind in "biufc"
            pipeline = _zarrs() if local and plain else None
            self._opened = (os.getpid(), *_open(self._store, self._key, pipeline))
        return self._opened[1:]


def _zarrs() -> str | None:
    """Return the codec pipeline of ``zarrs``, or None where it is missing or its threads are."""
    try:
        optional("zarrs", extra="zarr")
    except ImportError:
        return None
    return "zarrs.ZarrsCodecPipeline" if is_first_process("zarrs") else None


@dataclass(slots=True)
class _MissingSeen:
    """Missing objects that zarr-python has asked for: how many, and the last one."""

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


def _open(store: ByteStore, key: str, pipeline: str | None) -> tuple[Any, _MissingSeen | None]:
    """Return the array, and what is missing of it; zarrs does not report that."""
    zarr = optional("zarr", extra="zarr")
    settings, seen = {"codec_pipeline.path": pipeline}, None
    with reading(store.name(key.rstrip("/")), "zarr-python"):
        opened, prefix = store.zarr_store()
        if pipeline is None:
            settings, seen = {}, _MissingSeen()
            opened = _observed_store()(opened)
            opened.seen = seen
        # the pipeline is chosen when an array is opened; the setting is global, and restored
        with library_lock("zarr"), zarr.config.set(settings), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about fallbacks inside of zarrs
            return zarr.open_array(opened, path=(prefix + key).strip("/"), mode="r"), seen
