"""A source as a stream reads it: its fields' storage, the cost of a block, and what is resident."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from math import prod

import numpy as np

from penstock.sources.base import BaseSource, ComposedSource, composed
from penstock.sources.boxes import Leaf
from penstock.sources.contract import Arrays, Indices, Rows, Source, varies
from penstock.sources.ragged_rows import offsets_of
from penstock.sources.verbs import Patches
from penstock.streaming.budget import BlockCost, Pace, resident_bytes, resident_fields
from penstock.streaming.held_rows import StoredRows

TINY_BYTES = 1 << 20  # of a storage chunk: a larger one is worth a read
MAPPED_LEAVES = 64  # more stored arrays are not opened to see whether they can be mapped


class StreamInput:
    """A source with small fields of long chunks in memory, and the cost of its blocks.

    Args:
        source: The source.
        budget: Bytes for all buffers together.
    """

    def __init__(self, source: Source, budget: int) -> None:
        self._given, self._budget, stored = source, budget, composed(source)
        paces = {number: _pace(leaf, number) for number, leaf in enumerate(stored.leaves)}
        names = [] if varies(stored) else resident_fields(paces, budget)
        kept = {id(each): each for each in (stored.leaves[number].source for number in names)}
        fields = {
            key: [stored.leaves[n].field for n in names if id(stored.leaves[n].source) == key]
            for key in kept
        }
        self.resident = {key: ResidentSource(kept[key], fields[key]) for key in kept}
        self.resident_bytes = resident_bytes([paces[number] for number in names])
        self.paces = [paces[n] for n in paces if n not in names]  # that are read block by block
        self.chunk_bytes = max((pace.chunk_bytes for pace in self.paces), default=0)
        read = (leaf.source for n, leaf in enumerate(stored.leaves) if n not in names)
        self.decodes_first = any(getattr(each, "decodes_first", False) for each in read)
        self.sample_bytes = sum(field.nbytes for field in source.fields.values())
        self.source: Source = self.resident.get(id(source), source)
        leaves = [
            replace(
                leaf,
                source=self.resident.get(id(leaf.source), leaf.source),
                # rows in memory cost nothing beyond themselves
                chunks=leaf.chunks if paces[n].chunk_rows and n not in names else (1, *leaf.shape),
            )
            for n, leaf in enumerate(stored.leaves)
        ]
        few = min(len(source), 2 * source.block_samples + 1)
        self.rows: StoredRows | None = None
        if isinstance(source, ComposedSource) and source.view(0, few) is None:
            self.rows = StoredRows(source, leaves)

    def __reduce__(self) -> tuple[type[StreamInput], tuple[Source, int]]:
        return type(self), (self._given, self._budget)

    def __deepcopy__(self, memo: object) -> StreamInput:
        return self  # it never changes: copies of a loader share it, and the data

    def with_budget(self, budget: int) -> StreamInput:
        """Return the same source with another budget."""
        return StreamInput(self._given, budget)

    @property
    def decodes(self) -> bool:
        """Whether chunks of the storage are decoded; else it is memory-mapped."""
        return self.chunk_bytes > 0

    @property
    def is_cut(self) -> bool:
        """Whether samples are patches, which takes time to plan for each block."""
        return self.rows is not None and self.rows.is_cut

    @property
    def chunk_rows(self) -> int:
        """Rows that a read decodes together, of the widest field; 0 if none are decoded."""
        return self._widest.chunk_rows

    @property
    def has_tiny_chunks(self) -> bool:
        """Whether each sample is a small storage chunk of its own, and needs a read of its own."""
        widest = self._widest
        whole = widest.row_bytes <= widest.chunk_bytes < TINY_BYTES  # not one of many in a sample
        return widest.chunk_rows == 1 and whole and not self.is_cut

    @property
    def _widest(self) -> Pace:
        return max(self.paces, key=lambda pace: pace.row_bytes, default=Pace(0, 0, 0, 0))

    def cost(self, block: int) -> BlockCost:
        """Return the cost of a block of this many samples."""
        if self.rows is not None:
            return self.rows.needs(block)[0]
        nbytes = block * self.sample_bytes
        own = block * sum(pace.row_bytes for pace in self.paces)
        return BlockCost(nbytes, own, sum(pace.decoded(block) for pace in self.paces))

    def decoded_in_all(self, block: int) -> float:
        """Return the bytes that are decoded for all samples, in blocks of this many."""
        if self.rows is not None:
            return self.cost(block).decoded_bytes * -(-len(self.source) // block)
        return sum(pace.decoded_in_all(block) for pace in self.paces)

    @property
    def block_samples(self) -> int:
        """Samples that are cheapest to read together."""
        block = self.source.block_samples
        return block if self.rows is None else min(block, self.rows.most_samples)

    @property
    def whole_rows(self) -> int:
        """Samples that a chunk of whole rows has: more than a block if samples are patches."""
        layout = None if self.rows is None else self.rows.source.layout
        return prod(layout.counts) if isinstance(layout, Patches) else self.block_samples

    def drop(self) -> None:
        """Free resident fields; the next read loads them again."""
        for each in self.resident.values():
            each.drop()


def _pace(leaf: Leaf, number: int) -> Pace:
    mapped = number < MAPPED_LEAVES and leaf.in_place
    rows, nbytes = (0, 0) if mapped else (leaf.chunks[0], leaf.chunk_bytes)
    sizes = zip(leaf.shape, leaf.chunks[1:], strict=True)
    whole = prod(-(-size // chunk) * chunk for size, chunk in sizes) * leaf.dtype.itemsize
    return Pace(leaf.rows, leaf.row_bytes, rows, nbytes, whole)


class ResidentSource(BaseSource):
    """A source with some of its fields in memory: they are read once, with the first block.

    Labels are often stored in one chunk, which would be decoded again for every block.

    Args:
        source: The source.
        names: Fields to keep in memory.
    """

    def __init__(self, source: Source, names: Collection[str]) -> None:
        super().__init__(len(source), source.fields)
        self._source, self._names = source, frozenset(names)
        self._kept: dict[str, Rows] | None = None
        self._lock = threading.Lock()
        self.in_flight = getattr(source, "in_flight", None)

    @property
    def block_samples(self) -> int:
        """The ``block_samples`` of the source."""
        return self._source.block_samples

    def offsets(self, name: str) -> Indices:
        """Return the offsets of the source."""
        return offsets_of(self._source, name)

    def __repr__(self) -> str:
        return repr(self._source)

    def fingerprint(self) -> str:
        """Return the fingerprint of the source."""
        return self._source.fingerprint()

    def drop(self) -> None:
        """Free the memory; the next read loads the fields again."""
        self._kept = None

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        kept = self._resident()
        for name in self._names & out.keys():
            np.copyto(out[name], kept[name][start:stop])
        rest = {name: rows for name, rows in out.items() if name not in self._names}
        if rest:
            self._source.read(start, stop, rest)

    def _take(self, indices: Indices, out: Arrays) -> None:
        kept = self._resident()
        for name in self._names & out.keys():
            np.take(kept[name], indices, axis=0, out=out[name], mode="clip")
        rest = {name: rows for name, rows in out.items() if name not in self._names}
        if rest:
            self._source.take(indices, rest)

    def _resident(self) -> dict[str, Rows]:
        with self._lock:
            if self._kept is None:
                kept: dict[str, Rows] = {}
                for name in sorted(self._names):
                    field = self.fields[name]
                    kept[name] = np.empty((self._length, *field.shape), field.dtype)
                self._source.read(0, self._length, kept)
                self._kept = kept
            return self._kept
