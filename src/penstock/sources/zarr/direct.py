"""Chunks of an array decoded straight into their place, without zarr-python."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from resource import RLIMIT_NOFILE, getrlimit
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.sources.base import Field
from penstock.sources.fingerprints import digest, sampled_blocks
from penstock.sources.scratch import Bytes, scratch
from penstock.sources.zarr.codecs import BadChunk
from penstock.sources.zarr.grid import ChunkRead, Crop, Grid, sample_shape
from penstock.sources.zarr.layout import ArrayLayout
from penstock.sources.zarr.locate import ChunkLocator, Location
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
        crop: Crop | None = None,
    ) -> None:
        self._stored, self._layout, self._axis, self._crop = stored, layout, axis, crop
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
            for read in reads:
                self._place(read, target)
            return
        with ThreadPoolExecutor(threads, "penstock-fetch") as pool:
            try:
                for done in [pool.submit(self._place, read, target) for read in reads]:
                    done.result()
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
        counts = self._grid.chunk_counts
        for number in sampled_blocks(int(np.prod(counts))):
            where = self._locate(tuple(int(i) for i in np.unravel_index(number, counts)))
            stored = None
            if where is not None:
                stored = self._stored.fetch(where.key, new_memory, where.offset, where.nbytes)
            yield b"missing" if stored is None else stored

    def _place(self, read: ChunkRead, target: Rows) -> None:
        part = target[read.target]
        if read.whole and part.flags.c_contiguous:
            if not self._decode(read.place, part.reshape(-1).view(np.uint8)):
                part[...] = self._layout.fill
            return
        chunk = self._mapped_chunk(read.place)
        if chunk is not None:  # a few rows of a raw chunk: no need to read all of it
            part[...] = chunk[read.inside]
            return
        decoded = scratch("decoded", self._layout.chunk_bytes)
        if self._decode(read.place, decoded):
            part[...] = self._shaped(decoded)[read.inside]
        else:
            part[...] = self._layout.fill

    def _decode(self, place: tuple[int, ...], into: Bytes) -> bool:
        """Whether the chunk is there; if so, ``into`` holds it."""
        where = self._locate(place)
        if where is None:
            return False
        stored = self._fetch(where, into)
        if stored is None:
            return False
        try:
            self._layout.codecs.decode(stored, into)
        except BadChunk as error:
            raise self._damaged(where, str(error)) from error
        return True

    def _fetch(self, where: Location, into: Bytes) -> Bytes | None:
        def room(nbytes: int) -> Bytes:
            if self._layout.is_raw and nbytes == into.size:
                return into
            if nbytes > self._layout.codecs.most_stored_bytes(self._layout.chunk_bytes):
                raise self._damaged(where, f"{nbytes} bytes are more than a chunk can have")
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
            self._check_size(kept.mapping, kept.where)
        return kept.chunk

    def _map_chunk(self, place: tuple[int, ...]) -> _Mapped | None:
        where = self._locate(place)
        mapping = None if where is None else self._stored.mapped(where.key)
        if where is None or mapping is None:
            return None
        self._check_size(mapping, where)
        stored = np.frombuffer(mapping, np.uint8, self._layout.chunk_bytes, where.offset)
        return _Mapped(where, mapping, self._shaped(stored))

    def _check_size(self, mapping: mmap.mmap, where: Location) -> None:
        """At every look: pages past the end of a file that has shrunk would be SIGBUS."""
        size, expected = mapping.size(), self._layout.chunk_bytes
        found = size if where.nbytes is None else where.nbytes
        if found != expected or where.offset + expected > min(size, len(mapping)):
            raise self._damaged(where, f"it holds {found} bytes where the chunk has {expected}")

    def _shaped(self, decoded: Bytes) -> Rows:
        return decoded.view(self._layout.dtype).reshape(self._layout.chunks)

    def _damaged(self, where: Location, why: str) -> SourceError:
        return SourceError(
            f"cannot decode chunk file {self._stored.name(where.key)}: {why}; "
            f"restore it from a copy, or delete it to read {self._layout.fill!r} there"
        )
