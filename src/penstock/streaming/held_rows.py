"""Rows of composed sources, each held once: samples are copied out of them into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.order import Indices
from penstock.sources.assembly import read_span
from penstock.sources.base import ComposedSource, Rows, Source
from penstock.sources.boxes import Leaf, Places, Span
from penstock.streaming.buffers import BatchBuffers, allocate
from penstock.streaming.copies import gather, gather_boxes
from penstock.streaming.held import fill_place
from penstock.streaming.placement import BlockReplacement
from penstock.streaming.planner import BlockRead

MEASURED_BLOCKS = 256  # blocks whose memory is computed before anything is read
EXAMINED_BLOCKS = 16  # of these, blocks that are looked at more closely


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """What a block of a composed source takes.

    Args:
        capacity: Most bytes of rows, by store.
        own_bytes: Bytes of rows that a block needs and the one before it does not.
        decoded_bytes: Bytes that are decoded for a block.
        runs: Fields whose samples are consecutive rows.
    """

    capacity: Mapping[int, int]
    own_bytes: float
    decoded_bytes: float
    runs: frozenset[str]

    @property
    def nbytes(self) -> int:
        """Most bytes of rows, of all stores."""
        return sum(self.capacity.values())


def block_needs(source: ComposedSource, leaves: Sequence[Leaf], block: int) -> BlockNeeds:
    """Return what blocks of ``block`` samples take, from some of them, or all if there are few.

    Args:
        source: The source.
        leaves: Its leaves.
        block: Samples of a block.
    """
    size, count = len(source), -(-len(source) // block)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MEASURED_BLOCKS)).astype(np.int64))
    epochs = 1
    if any(output.cut for output in source.outputs.values()):  # random patches differ by epoch
        epochs = -(-MEASURED_BLOCKS // len(chosen) // 4)
    capacity: dict[int, int] = {}
    own = decoded = examined = total = 0
    runs = set(source.outputs)
    for epoch in range(epochs):
        here = source.drawn(0, epoch)
        for number, first in enumerate((chosen * block).tolist()):
            samples = np.arange(first, min(size, first + block))
            spans, nbytes = here.needs(samples), 0
            for store, each in spans.items():
                found = sum(span_bytes(leaves, span) for span in each)
                capacity[store] = max(capacity.get(store, 0), found)
                decoded += sum(decoded_bytes(leaves[span.leaf], span) for span in each)
                nbytes += found
            total += 1
            if epoch == 0 and number % -(-len(chosen) // EXAMINED_BLOCKS) == 0:
                more = here.needs(np.arange(first, min(size, first + 2 * block)))
                joined = sum(span_bytes(leaves, span) for each in more.values() for span in each)
                own += nbytes if joined == nbytes else joined - nbytes
                examined += 1
                runs -= _irregular(here.places(samples, spans))
    return BlockNeeds(capacity, own / examined, decoded / total, frozenset(runs))


def _irregular(places: Mapping[str, Places]) -> set[str]:
    """Return the fields with a sample that is not made of consecutive rows."""
    return {
        name
        for name, found in places.items()
        if (np.diff(found.index.reshape(len(found.index), -1), axis=1) != 1).any()
    }


def span_bytes(leaves: Sequence[Leaf], span: Span) -> int:
    """Return the bytes of a span in memory."""
    return prod(span.shape) * leaves[span.leaf].dtype.itemsize


def decoded_bytes(leaf: Leaf, span: Span) -> int:
    """Return the bytes of the chunks that have a part of a span."""
    chunks, total = leaf.chunks, leaf.dtype.itemsize
    low, high = (span.start, *span.low), (span.stop, *span.high)
    for first, last, chunk in zip(low, high, chunks, strict=True):
        total *= (-(-last // chunk) - first // chunk) * chunk
    return total


class HeldRows:
    """Memory for the rows that blocks need, each row once; see `held.HeldBlocks`.

    Args:
        source: The samples.
        leaves: Where its rows are read from: those of ``source``, or of the same data.
        needs: What a block takes.
        buffers: Memory of the batches.
        block: Most samples of a block.
        places: Blocks that can be held at the same time.
        seed: Of the random patches.
    """

    def __init__(
        self,
        source: ComposedSource,
        leaves: Sequence[Leaf],
        needs: BlockNeeds,
        buffers: BatchBuffers,
        *,
        block: int,
        places: int,
        seed: int,
    ) -> None:
        self.block, self.places, self.buffers = block, places, buffers
        self.made_for = (buffers, block, places, seed)
        self._filled: set[int] = set()  # places that are read or held
        self._source, self._leaves, self._capacity = source, leaves, needs.capacity
        self._memory = {
            store: allocate(places * nbytes) for store, nbytes in needs.capacity.items()
        }
        self._extra: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}  # by (store, place)
        self._tables = {
            name: allocate(places * block * 8 * columns).view(np.int64).reshape(-1, columns)
            for name, columns in table_columns(source, needs).items()
        }
        self._drawn = lru_cache(4)(lambda epoch: source.drawn(seed, epoch))

    # -- reading

    def fill(self, place: int, samples: Indices, epoch: int) -> None:
        """Read the rows of these samples to a place."""
        self._filled.add(place)
        source = self._drawn(epoch)
        spans = source.needs(samples)
        reads: dict[tuple[int, int, int], tuple[Source, dict[str, Rows]]] = {}
        bases: dict[int, int] = {}
        for store, each in spans.items():
            memory, bases[store] = self._room(store, place, each)
            at = 0
            for span in each:
                leaf, nbytes = self._leaves[span.leaf], span_bytes(self._leaves, span)
                out = memory[at : at + nbytes].view(leaf.dtype).reshape(span.shape)
                at += nbytes
                key = id(leaf.source), span.start, span.stop
                if span.shape[1:] == leaf.shape and leaf.field not in reads.get(key, (0, {}))[1]:
                    reads.setdefault(key, (leaf.source, {}))[1][leaf.field] = out
                else:
                    read_span(leaf, span, out)
        for (_, start, stop), (stored, fields) in reads.items():  # fields of one file together
            stored.read(start, stop, fields)
        first = place * self.block
        for name, found in source.places(samples, spans).items():
            store = source.outputs[name].store
            table = self._tables[name][first : first + len(samples)]
            if source.outputs[name].cut:
                self._note_boxes(table, name, found, spans[store], bases[store])
            else:
                index = found.index.reshape(len(samples), -1)
                row_bytes = self._leaves[store].row_bytes
                table[:] = index[:, : table.shape[1]] + bases[store] // row_bytes

    def _room(
        self, store: int, place: int, spans: Sequence[Span]
    ) -> tuple[npt.NDArray[np.uint8], int]:
        """Return memory for spans, and the byte of the store's memory where it begins."""
        capacity, needed = self._capacity[store], sum(span_bytes(self._leaves, s) for s in spans)
        if needed > capacity:  # more than in any block that was measured
            extra = self._extra[store, place] = np.empty(needed, np.uint8)
            return extra, 0
        return self._memory[store][place * capacity : (place + 1) * capacity], place * capacity

    def _note_boxes(
        self, table: Indices, name: str, found: Places, spans: Sequence[Span], base: int
    ) -> None:
        """Note the first byte of each box of a patch, and the strides of its canvas in bytes."""
        output = self._source.outputs[name]
        item, rows = output.dtype.itemsize, np.array([span.stop - span.start for span in spans])
        shapes = np.array([span.shape for span in spans], np.int64)
        sizes = np.cumprod(shapes[:, :0:-1], axis=1)[:, ::-1]  # items of a row, line, ...
        strides = np.concatenate([sizes[:, 1:], np.ones((len(spans), 1), np.int64)], axis=1)
        begin = np.cumsum(rows) - rows
        first = np.cumsum(rows * sizes[:, 0]) - rows * sizes[:, 0]
        low = np.array([span.low for span in spans], np.int64)
        index = found.index.reshape(len(table), -1)
        which = np.searchsorted(begin, index, side="right") - 1
        corner = ((found.corner[:, None] - low[which]) * strides[which]).sum(axis=2)
        steps = index.shape[1]
        starts = first[which] + (index - begin[which]) * sizes[which, 0] + corner
        table[:, :steps] = base + starts * item
        table[:, steps:] = (strides[which] * item).reshape(len(table), -1)

    def free(self, place: int) -> None:
        """Free memory that a place needed beyond its own."""
        for key in [key for key in list(self._extra) if key[1] == place]:
            del self._extra[key]
        self._filled.discard(place)

    @property
    def is_reusable(self) -> bool:
        """Whether no place is in use. If one is, an abandoned reader may still write to it."""
        return not self._filled

    # -- gathering

    def begin_batch(self) -> _SlotBatch:
        """Return an empty batch in a slot of its own."""
        return _SlotBatch(self, self.buffers.take(1)[0])

    def copy(self, numbers: Indices, targets: Indices) -> None:
        """Copy held samples to rows of the buffers.

        Args:
            numbers: ``place * block + i`` for sample i of a place.
            targets: The row of each.
        """
        for name, rows in self.buffers.rows.items():
            output = self._source.outputs[name]
            for memory, here in self._memories(output.store, numbers):
                table, chosen = self._tables[name][numbers[here]], targets[here]
                if output.cut:
                    steps = prod(output.steps)
                    shape = (len(rows), steps, *output.inner)
                    gather_boxes(memory, table, np.ndarray(shape, output.dtype, rows), chosen)
                    continue
                row_bytes, columns = self._leaves[output.store].row_bytes, table.shape[1]
                size = rows.itemsize // columns
                item = np.dtype((np.void, size))
                count = (memory.nbytes - size) // row_bytes + 1
                items = np.ndarray((count,), item, memory, 0, (row_bytes,))
                if columns > 1:
                    chosen = (chosen[:, None] * columns + np.arange(columns)).reshape(-1)
                gather(items, table.reshape(-1), rows.view(item), chosen)

    def _memories(
        self, store: int, numbers: Indices
    ) -> Iterator[tuple[npt.NDArray[np.uint8], Any]]:
        """Yield the memories of a store, and which of these samples are in each."""
        extra = [place for which, place in list(self._extra) if which == store]
        if not extra:
            yield self._memory[store], slice(None)
            return
        of = numbers // self.block
        yield self._memory[store], np.flatnonzero(~np.isin(of, extra))
        for place in extra:
            yield self._extra[store, place], np.flatnonzero(of == place)


def table_columns(source: ComposedSource, needs: BlockNeeds) -> dict[str, int]:
    """Return how many numbers say where a sample is, by field."""
    found = {}
    for name, output in source.outputs.items():
        steps = prod(output.steps)
        if output.cut:
            found[name] = steps * (1 + len(output.inner))
        else:
            found[name] = 1 if name in needs.runs else steps
    return found


class _SlotBatch:
    """A batch that is gathered into a slot."""

    def __init__(self, held: HeldRows, slot: int) -> None:
        self._held, self._slot = held, slot

    def gather(self, numbers: Indices, rows: Indices | None) -> None:
        rows = np.arange(len(numbers)) if rows is None else rows
        self._held.copy(numbers, rows + self._slot * self._held.buffers.batch)

    def finish(self, rows: int) -> dict[str, Any]:
        return self._held.buffers.hand_out(self._slot, rows)

    def drop(self) -> None:
        self._held.buffers.free.append(self._slot)


class ComposedReader:
    """Reads the rows of a block and writes its samples to their slots; one for each thread.

    Args:
        rows: Memory for the rows of one block, and the slots.
        replacement: Replaces blocks that cannot be read; None raises the source's error.
    """

    def __init__(self, rows: HeldRows, replacement: BlockReplacement | None = None) -> None:
        self._rows, self._replacement = rows, replacement

    def read(self, read: BlockRead, target: Indices) -> None:
        """Read a block and write its selected samples to rows of the buffers."""
        fill_place(self._rows.fill, 0, read, self._replacement)
        self._rows.copy(np.arange(read.selected), target)
        self._rows.free(0)
