"""Chunks of an array decoded straight into their place, without zarr-python."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from resource import RLIMIT_NOFILE, getrlimit
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.fingerprints import digest, sampled_blocks
from penstock.sources.base import Field
from penstock.sources.scratch import Bytes, scratch
from penstock.sources.zarr.codecs import BadChunk
from penstock.sources.zarr.grid import ChunkRead, Crop, Grid, sample_shape
from penstock.sources.zarr.layout import ArrayLayout
from penstock.sources.zarr.locate import ChunkLocator, Location
from penstock.sources.zarr.missing import MissingChunks
from penstock.sources.zarr.slots import Slots
from penstock.sources.zarr.stored import StoredBytes, new_memory

# each kept map holds a file descriptor; 128 are 512 MB of 4 MB chunks
KEPT_MAPS = max(8, min(128, getrlimit(RLIMIT_NOFILE)[0] // 16))

Rows = npt.NDArray[np.generic]


class _Mapped(NamedTuple):
    """A raw chunk over the mapped pages of its file."""

    where: Location
    mapping: mmap.mmap
    chunk: Rows


class DirectArray:
    """One array whose codecs are decoded here: read into place, or looked at where it is raw."""

    reader = "direct"
    why = ""

    def __init__(
        self,
        stored: StoredBytes,
        prefix: str,
        layout: ArrayLayout,
        axis: int,
        missing: MissingChunks,
        crop: Crop | None = None,
    ) -> None:
        self._stored, self._layout, self._axis, self._crop = stored, layout, axis, crop
        self._name, self._missing = stored.name(prefix.rstrip("/")), missing
        self._grid = Grid(layout.shape, layout.chunks, axis, crop)
        self.samples = layout.shape[axis]
        self.field = Field(sample_shape(layout.shape, axis, crop), layout.dtype)
        self.chunk_samples = self._grid.samples_per_chunk
        self._locate = ChunkLocator(stored, prefix, layout)
        self._maps: Slots[_Mapped] = Slots(KEPT_MAPS)

    def read(self, start: int, stop: int, out: Rows) -> None:
        """Fill ``out`` with samples ``start:stop``, its first axis being that of samples."""
        target = np.moveaxis(out, 0, self._axis) if self._axis else out
        reads = list(self._grid.reads(start, stop))
        threads = min(self._stored.concurrency, len(reads))
        if threads < 2:
            found = [self._place(read, target) for read in reads]
        else:
            found = self._place_all(reads, target, threads)
        if not all(found):
            self._missing.verify()

    def _place_all(self, reads: list[ChunkRead], target: Rows, threads: int) -> list[bool]:
        with ThreadPoolExecutor(threads, "penstock-fetch") as pool:
            try:
                placed = [pool.submit(self._place, read, target) for read in reads]
                return [one.result() for one in placed]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # do not fetch what nobody wants
                raise

    def view(self, start: int, stop: int) -> Rows | None:
        """Samples ``start:stop`` over mapped pages, where they are one part of one raw chunk."""
        read = self._grid.one_read(start, stop)
        chunk = None if read is None else self._mapped_chunk(read.place)
        if read is None or chunk is None:
            return None
        part = chunk if read.whole else chunk[read.inside]
        return np.moveaxis(part, self._axis, 0) if self._axis else part

    def fingerprint(self) -> str:
        """Identity of the array: shape, dtype, chunking and the stored bytes of a few chunks."""
        layout = self._layout
        facts = [list(layout.shape), layout.dtype.str, list(layout.chunks), self._axis, self._crop]
        return digest(facts, self._sampled_bytes())

    def _sampled_bytes(self) -> Iterator[bytes | Bytes]:
        for number in sampled_blocks(prod(self._grid.chunk_counts)):
            where = self._locate(self._grid.place(number))
            stored = None
            if where is not None:
                stored = self._stored.fetch(where.key, new_memory, where.offset, where.nbytes)
            if stored is None:
                self._missing.verify()
            yield b"missing" if stored is None else stored

    def _place(self, read: ChunkRead, target: Rows) -> bool:
        """Fill the part of ``target`` that one chunk has; False where no such chunk is stored."""
        part = target[read.target]
        if read.whole and part.flags.c_contiguous:
            found = self._decode(read.place, part.reshape(-1).view(np.uint8))
        else:
            chunk = self._mapped_chunk(read.place)
            if chunk is not None:  # a few rows of a raw chunk: no need to read all of it
                part[...] = chunk[read.inside]
                return True
            decoded = self._room(read.place)
            found = self._decode(read.place, decoded)
            if found:
                part[...] = self._shaped(decoded)[read.inside]
        if not found:
            part[...] = self._layout.fill
        return found

    def _room(self, place: tuple[int, ...]) -> Bytes:
        try:
            return scratch("decoded", self._layout.chunk_bytes)
        except (MemoryError, ValueError) as error:
            raise SourceError(
                f"chunk {place} of array {self._name} has {self._layout.chunk_bytes:,} bytes, "
                "more than there is memory for: write the array with smaller chunks"
            ) from error

    def _decode(self, place: tuple[int, ...], into: Bytes) -> bool:
        """Whether the chunk is there; if so, ``into`` holds it."""
        where = self._locate(place)
        stored = None if where is None else self._fetch(where, place, into)
        if where is None or stored is None:
            self._missing.report(self._locate.key(place))
            if where is not None and where.nbytes is not None:
                raise self._damaged(where, place, "its shard was deleted while it was read")
            return False
        try:
            self._layout.codecs.decode(stored, into)
        except (BadChunk, MemoryError) as error:
            why = str(error) or "there is not enough memory to decode it"
            raise self._damaged(where, place, why) from error
        return True

    def _fetch(self, where: Location, place: tuple[int, ...], into: Bytes) -> Bytes | None:
        def room(nbytes: int) -> Bytes:
            if self._layout.is_raw and nbytes == into.size:
                return into
            if nbytes > self._layout.codecs.most_stored_bytes(self._layout.chunk_bytes):
                raise self._damaged(where, place, f"{nbytes} bytes are more than a chunk can have")
            return scratch("stored", nbytes)

        return self._stored.fetch(where.key, room, where.offset, where.nbytes)

    def _mapped_chunk(self, place: tuple[int, ...]) -> Rows | None:
        """A raw chunk over mapped pages; None where it is not raw, not here, or missing."""
        if not self._layout.is_raw:
            return None
        number = self._locate.number(place)
        kept = self._maps.get(number)
        if kept is None:
            kept = self._map_chunk(place)
            if kept is None:
                return None
            self._maps.put(number, kept)
        else:
            self._check_size(kept.mapping, kept.where, place)
        return kept.chunk

    def _map_chunk(self, place: tuple[int, ...]) -> _Mapped | None:
        where = self._locate(place)
        mapping = None if where is None else self._stored.mapped(where.key)
        if where is None or mapping is None:
            return None
        self._check_size(mapping, where, place)
        stored = np.frombuffer(mapping, np.uint8, self._layout.chunk_bytes, where.offset)
        return _Mapped(where, mapping, self._shaped(stored))

    def _check_size(self, mapping: mmap.mmap, where: Location, place: tuple[int, ...]) -> None:
        """At every look: pages past the end of a file that has shrunk would be SIGBUS."""
        size, expected = mapping.size(), self._layout.chunk_bytes
        found = size if where.nbytes is None else where.nbytes
        if found != expected or where.offset + expected > min(size, len(mapping)):
            why = f"it holds {found} bytes where the chunk has {expected}"
            raise self._damaged(where, place, why)

    def _shaped(self, decoded: Bytes) -> Rows:
        return decoded.view(self._layout.dtype).reshape(self._layout.chunks)

    def _damaged(self, where: Location, place: tuple[int, ...], why: str) -> SourceError:
        return SourceError(
            f"chunk {place} of array {self._name} is damaged ({why}): restore the file "
            f"{self._stored.name(where.key)} from a copy, or create the array again"
        )
