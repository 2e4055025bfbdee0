"""Chunks of an array decoded straight into the output, without zarr-python."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import SourceError
from penstock.fingerprints import digest, sampled_blocks
from penstock.metrics import Probe
from penstock.sources.array_source import ArrayReader, Box, samples_first
from penstock.sources.contract import Field, Rows
from penstock.sources.storage import ByteStore, new_memory
from penstock.sources.thread_buffers import Bytes, thread_buffer
from penstock.sources.zarr.chunks import (
    ArrayLayout,
    ChunkLocator,
    ChunkRead,
    Crop,
    FixedCache,
    Grid,
    Location,
    MissingChunks,
    Position,
    side_by_side,
)
from penstock.sources.zarr.codecs import BadChunk

CACHED_BOXES = 1024
TOGETHER_BYTES = 1 << 20  # of chunks that are decoded together, and of which a part is needed
# each cached map holds a file descriptor; 128 are 512 MB of 4 MB chunks
CACHED_MAPS = max(8, min(128, getrlimit(RLIMIT_NOFILE)[0] // 16))


class _Mapped(NamedTuple):
    """A raw chunk over the mapped pages of its file."""

    where: Location
    mapping: mmap.mmap
    chunk: Rows


class DirectArray(ArrayReader):
    """An array with common codecs: decoded into the output, or viewed in place if it is raw."""

    how = "direct"

    def __init__(
        self,
        store: ByteStore,
        prefix: str,
        layout: ArrayLayout,
        missing: MissingChunks,
        axis: int,
    ) -> None:
        self._store, self._layout, self._axis = store, layout, axis
        self._name, self._missing = store.name(prefix.rstrip("/")), missing
        self._grid = Grid(layout.shape, layout.chunks, axis)
        self.samples = layout.shape[axis]
        self.field = Field(layout.shape[:axis] + layout.shape[axis + 1 :], layout.dtype)
        self.chunks = samples_first(layout.chunks, axis)
        self.decodes_first = layout.codecs.decodes_first(layout.chunk_bytes)
        self._locate = ChunkLocator(store, prefix, layout)
        self._maps: FixedCache[_Mapped] = FixedCache(CACHED_MAPS)
        self._boxes: dict[Crop, Grid] = {}
        self._runs = False  # whether chunks follow each other along the axis of samples
        if layout.shards is not None and axis == 0 and layout.chunks[1:] == layout.shape[1:]:
            self._runs = prod(layout.shards.chunks_per_shard[1:]) == 1 and not layout.is_raw

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_boxes": {}}

    def read(self, start: int, stop: int, out: Rows, box: Crop | None = None) -> None:
        """Fill ``out`` with samples ``start:stop``; its first axis is that of samples.

        Args:
            start: The first sample.
            stop: One past the last.
            out: The array to fill.
            box: The part of each axis of a sample; all of it if None.
        """
        if (
            self._runs
            and box is None
            and out.flags.c_contiguous
            and self._read_run(start, stop, out)
        ):
            return
        grid = self._grid if box is None else self._grid_within(box)
        target = np.moveaxis(out, 0, self._axis) if self._axis else out
        reads = list(grid.reads(start, stop))
        fills: list[Callable[[], bool]] = [partial(self._fill, read, target) for read in reads]
        if self._layout.shards and len(reads) > 1 and not (self._layout.is_raw and self._is_near):
            fills = self._fills_together(reads, target)
        threads = min(self._store.concurrency, len(fills))
        found = [fill() for fill in fills] if threads < 2 else _all_of(fills, threads)
        if not all(found):
            self._missing.verify()

    def _read_run(self, start: int, stop: int, out: Rows) -> bool:
        """Fill ``out`` from several chunks that are side by side in a shard, in one call.

        Returns False if they are not, or if one cannot be decoded: `read` then reads chunk by chunk
        and reports what is wrong, but that takes longer than decoding if chunks are small.
        """
        rows, size, codecs = self.chunks[0], self._layout.chunk_bytes, self._layout.codecs
        first, last, decoder = start // rows, -(-stop // rows), codecs.decoder()
        if decoder is None or last - first < 2 or 2 * size > TOGETHER_BYTES:
            return False
        found = self._locate.run(first, last)
        if found is None:
            return False
        key, index = found
        offsets, sizes = index.T.astype(np.int64)
        begin, gaps = int(offsets[0]), offsets[1:] - offsets[:-1] - sizes[:-1]
        nbytes = int(offsets[-1] + sizes[-1]) - begin
        # as unsigned numbers, negative ones are very large: one pass finds both
        near = int(gaps.view("u8").max()) <= self._store.gap_bytes and begin >= 0
        right = int(sizes.view("u8").max()) <= codecs.most_stored_bytes(size)
        if not (near and right and nbytes <= self._store.together_bytes):
            return False
        stored = self._store.fetch(key, partial(thread_buffer, "stored"), begin, nbytes)
        if stored is None:
            return False
        outs = out.ctypes.data + (np.arange(first, last) * rows - start) * (size // rows)
        before, after = start - first * rows, last * rows - stop  # rows that are not wanted
        ends = self._shaped(thread_buffer("decoded", 2 * size), 2)
        if before:
            outs[0] = ends.ctypes.data
        if after:
            outs[-1] = ends.ctypes.data + size
        with Probe("decode"):
            if decoder.decode_all(stored, offsets - begin, sizes, outs, size) < len(outs):
                return False
            if before:
                out[: rows - before] = ends[0, before:]
            if after:
                out[stop - start + after - rows :] = ends[1, : rows - after]
        return True

    def _grid_within(self, box: Crop) -> Grid:
        """Return the grid of a part; it is cached, because patches of many rows share parts."""
        found = self._boxes.get(box)
        if found is None:
            if len(self._boxes) >= CACHED_BOXES:
                self._boxes.clear()
            found = self._boxes[box] = self._grid.within(box)
        return found

    @property
    def _is_near(self) -> bool:
        return self._store.concurrency < 2

    def _fills_together(self, reads: list[ChunkRead], target: Rows) -> list[Callable[[], bool]]:
        """Return functions that fill ``target`` from chunks of shards, one fetch each.

        Chunks that are stored side by side are fetched together: many small chunks need few
        requests, or a file is opened once for them.
        """
        places = self._locate.places([read.position for read in reads])
        where = [place or Location("") for place in places]
        order = sorted(range(len(reads)), key=lambda i: where[i][:2])
        most, gap = self._store.together_bytes, self._store.gap_bytes
        groups = side_by_side([places[i] for i in order], most, gap)
        fills: list[Callable[[], bool]] = []
        for group in groups:
            each = [(reads[order[i]], where[order[i]]) for i in group]
            if len(each) == 1:
                fills.append(partial(self._fill, each[0][0], target))
            else:
                fills.append(partial(self._fill_group, each, target))
        return fills

    def _fill_group(self, group: Sequence[tuple[ChunkRead, Location]], target: Rows) -> bool:
        """Fill ``target`` from chunks that are stored side by side."""
        (_, first), (_, last) = group[0], group[-1]
        nbytes = last.offset + (last.nbytes or 0) - first.offset
        allocate = partial(thread_buffer, "stored")
        stored = self._store.fetch(first.key, allocate, first.offset, nbytes)
        if stored is None:  # the shard is gone: `_fill` reports it
            return all(map(bool, [self._fill(read, target) for read, _ in group]))
        with Probe("decode"):
            for read, place in group[self._decode_group(group, stored, target) :]:
                at = place.offset - first.offset
                self._fill(read, target, stored[at : at + (place.nbytes or 0)])
        return True

    def _decode_group(
        self, group: Sequence[tuple[ChunkRead, Location]], stored: Bytes, target: Rows
    ) -> int:
        """Fill ``target`` from the first chunks of a group in one call; return how many."""
        decoder, nbytes = self._layout.codecs.decoder(), self._layout.chunk_bytes
        parts = [target[read.target] for read, _ in group]
        whole = [
            read.whole and part.flags.c_contiguous
            for (read, _), part in zip(group, parts, strict=True)
        ]
        others = whole.count(False)
        if decoder is None or others * nbytes > TOGETHER_BYTES:
            return 0
        scratch = thread_buffer("decoded", others * nbytes).reshape(others, nbytes)
        rest = iter(scratch)
        outs = [
            part if in_place else next(rest) for part, in_place in zip(parts, whole, strict=True)
        ]
        begins = [place.offset - group[0][1].offset for _, place in group]
        sizes = [place.nbytes or 0 for _, place in group]
        addresses = [out.ctypes.data for out in outs]
        done = decoder.decode_all(stored, begins, sizes, addresses, nbytes)
        for (read, _), part, out in zip(group[:done], parts, outs, strict=False):
            if out is not part:
                part[...] = self._shaped(out.view(np.uint8))[read.inside]
        return done

    def view(self, start: int, stop: int, box: Crop | None = None) -> Rows | None:
        """Return samples ``start:stop`` over mapped pages, if they are in one raw chunk."""
        if not self._layout.is_raw:
            return None
        grid = self._grid if box is None else self._grid_within(box)
        read = grid.one_read(start, stop)
        chunk = None if read is None else self._mapped_chunk(read.position)
        if read is None or chunk is None:
            return None
        part = chunk if read.whole else chunk[read.inside]
        return np.moveaxis(part, self._axis, 0) if self._axis else part

    def fingerprint(self, box: Box | None = None) -> str:
        """Return an identity: shape, dtype, chunking and the stored bytes of a few chunks."""
        layout, axis = self._layout, self._axis
        part = box and (*box[:axis], (0, self.samples), *box[axis:])
        facts = [list(layout.shape), layout.dtype.str, list(layout.chunks), axis, part]
        return digest(facts, self._sampled_bytes())

    def _sampled_bytes(self) -> Iterator[bytes | Bytes]:
        for number in sampled_blocks(prod(self._grid.chunk_counts)):
            where = self._locate(self._grid.position(number))
            stored = None
            if where is not None:
                stored = self._store.fetch(where.key, new_memory, where.offset, where.nbytes)
            if stored is None:
                self._missing.verify()
            yield b"missing" if stored is None else stored

    def _fill(self, read: ChunkRead, target: Rows, stored: Bytes | None = None) -> bool:
        """Fill the part of ``target`` from one chunk; return False if the chunk is missing.

        Args:
            read: The chunk.
            target: The array to fill.
            stored: Its bytes, if they are known.
        """
        part = target[read.target]
        if read.whole and part.flags.c_contiguous:
            found = self._decode(read.position, part.reshape(-1).view(np.uint8), stored, None)
        else:
            chunk = self._mapped_chunk(read.position)
            if chunk is not None:  # a few rows of a raw chunk: no need to read all of it
                part[...] = chunk[read.inside]
                return True
            decoded = self._chunk_buffer(read.position)
            found = self._decode(read.position, decoded, stored, self._wanted(read))
            if found:
                part[...] = self._shaped(decoded)[read.inside]
        if not found:
            part[...] = self._layout.fill
        return found

    def _chunk_buffer(self, position: Position) -> Bytes:
        try:
            return thread_buffer("decoded", self._layout.chunk_bytes)
        except (MemoryError, ValueError) as error:
            raise SourceError(
                f"chunk {position} of array {self._name} has {self._layout.chunk_bytes:,} bytes, "
                "more than the free memory: write the array with smaller chunks"
            ) from error

    def _wanted(self, read: ChunkRead) -> int:
        """Return how many of the first bytes of a chunk are needed."""
        last = 0
        for part, length in zip(read.inside, self._layout.chunks, strict=True):
            last = last * length + part.stop - 1
        return (last + 1) * self._layout.dtype.itemsize

    def _decode(
        self, position: Position, into: Bytes, stored: Bytes | None, wanted: int | None
    ) -> bool:
        """Decode the chunk into ``into``; return False if the chunk is missing.

        Args:
            position: The position of the chunk.
            into: The output, of the size of the chunk.
            stored: Its bytes, if they are known.
            wanted: How many of its first bytes are needed; all if None.
        """
        if stored is None:
            where = self._locate(position)
            stored = None if where is None else self._fetch(where, position, into)
            if stored is not None:
                with Probe("decode"):
                    return self._decode(position, into, stored, wanted)
            self._missing.report(self._locate.key(position))
            if where is not None and where.nbytes is not None:
                raise self._damaged(where, position, "its shard was deleted while it was read")
            return False
        try:
            self._layout.codecs.decode(stored, into, wanted)
        except (BadChunk, MemoryError) as error:
            why = str(error) or "not enough memory to decode it"
            where = self._locate(position)
            assert where is not None
            raise self._damaged(where, position, why) from error
        return True

    def _fetch(self, where: Location, position: Position, into: Bytes) -> Bytes | None:
        def allocate(nbytes: int) -> Bytes:
            if self._layout.is_raw and nbytes == into.size:
                return into
            if nbytes > self._layout.codecs.most_stored_bytes(self._layout.chunk_bytes):
                raise self._damaged(
                    where, position, f"{nbytes} bytes are more than a chunk can have"
                )
            return thread_buffer("stored", nbytes)

        return self._store.fetch(where.key, allocate, where.offset, where.nbytes)

    def _mapped_chunk(self, position: Position) -> Rows | None:
        """Return a raw chunk over mapped pages; None if it is not raw, not local, or missing."""
        if not self._layout.is_raw:
            return None
        number = self._locate.number(position)
        found = self._maps.get(number)
        if found is None:
            found = self._map_chunk(position)
            if found is None:
                return None
            self._maps.put(number, found)
        else:
            self._check_size(found.mapping, found.where, position)
        return found.chunk

    def _map_chunk(self, position: Position) -> _Mapped | None:
        where = self._locate(position)
        mapping = None if where is None else self._store.mapped(where.key)
        if where is None or mapping is None:
            return None
        self._check_size(mapping, where, position)
        stored = np.frombuffer(mapping, np.uint8, self._layout.chunk_bytes, where.offset)
        return _Mapped(where, mapping, self._shaped(stored))

    def _check_size(self, mapping: mmap.mmap, where: Location, position: Position) -> None:
        # before every access: touching pages past the end of a file that has shrunk is SIGBUS
        size, expected = mapping.size(), self._layout.chunk_bytes
        found = size if where.nbytes is None else where.nbytes
        if found != expected or where.offset + expected > min(size, len(mapping)):
            why = f"it holds {found} bytes where the chunk has {expected}"
            raise self._damaged(where, position, why)

    def _shaped(self, decoded: Bytes, *count: int) -> Rows:
        return decoded.view(self._layout.dtype).reshape(*count, *self._layout.chunks)

    def _damaged(self, where: Location, position: Position, why: str) -> SourceError:
        return SourceError(
            f"chunk {position} of array {self._name} is damaged ({why}): restore the file "
            f"{self._store.name(where.key)} from a copy, or create the array again"
        )


def _all_of(fills: Sequence[Callable[[], bool]], threads: int) -> list[bool]:
    """Return what each function returns; they run in threads."""
    with ThreadPoolExecutor(threads, "penstock-fetch") as pool:
        try:
            filled = [pool.submit(fill) for fill in fills]
            return [one.result() for one in filled]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # nobody waits for the rest
            raise
