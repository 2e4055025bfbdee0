"""Rows of composed sources, each held once: samples are copied out of them into batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, TypeAlias

import numpy as np

from penstock.arguments import format_bytes
from penstock.order import Indices
from penstock.sources.assembly import Reads, read_span
from penstock.sources.base import ComposedSource
from penstock.sources.boxes import Leaf, Located, Places, Span
from penstock.sources.verbs import Draw
from penstock.streaming.budget import BlockCost
from penstock.streaming.buffers import BatchBuffers, allocate
from penstock.streaming.copies import gather, gather_boxes
from penstock.streaming.held import fill_place
from penstock.streaming.placement import BlockReplacement
from penstock.streaming.planner import BlockRead

log = logging.getLogger("penstock")

Spans: TypeAlias = Mapping[int, Sequence[Span]]
# by field, a row of integers for each sample: its held rows, counted from the first of the block;
# for patches, the first byte of each box, and its strides in bytes
Tables: TypeAlias = Mapping[str, Indices]

MEASURED_BLOCKS = 64  # blocks whose memory is computed before anything is read
EXAMINED_BLOCKS = 16  # of these, blocks that are examined in detail
EXAMINED_SAMPLES = 64
PIECE = 1 << 14  # seams whose rows are computed at a time
REMEMBERED_BYTES = 4 << 20  # of blocks whose samples need not be located again in the next epoch
REMEMBERED_SPAN = 500  # bytes of one of their spans
LISTED_ROWS = 1 << 18  # rows of a block that are listed one by one, 8 bytes each


class StoredRows:
    """Where the rows of a composed source are stored, and which of them a block needs.

    Args:
        source: The samples.
        leaves: Where rows are read from: the leaves of ``source``, or others with the same data.
    """

    def __init__(self, source: ComposedSource, leaves: Sequence[Leaf]) -> None:
        self.source, self.leaves, outputs = source, leaves, source.outputs
        some = np.unique(np.linspace(0, len(source) - 1, EXAMINED_SAMPLES).astype(np.int64))
        located = source.locate(some)
        self.runs = {  # fields whose samples are consecutive rows
            name: not output.cut
            and bool((np.diff(located[name].rows.reshape(len(some), -1), axis=1) == 1).all())
            for name, output in outputs.items()
        }
        self._is_regular = all(self.runs.values()) and all(
            output.pitch is not None and output.pitch <= max(1, prod(output.steps))
            for output in outputs.values()
        )
        self.is_cut = any(output.cut for output in outputs.values())
        self._is_random = self.is_cut and source.widest_needs(some) != source.needs(some)
        self.columns = {  # how many integers say where a sample is held
            name: 1 if self.runs[name] else prod(each.steps) * (1 + each.cut * len(each.inner))
            for name, each in outputs.items()
        }
        self._needs: dict[int, tuple[BlockCost, dict[int, int]]] = {}
        self._known: dict[tuple[int, int], tuple[Spans, Tables]] = {}  # what `block` returned
        self._known_bytes = 0

    @property
    def most_samples(self) -> int:
        """Most samples of a block: the rows of each are listed, unless all are regular."""
        steps = max(prod(output.steps) for output in self.source.outputs.values())
        return len(self.source) if self._is_regular else max(1, LISTED_ROWS // steps)

    def consecutive(self, samples: Indices) -> tuple[dict[int, list[Span]], dict[str, int]] | None:
        """Return spans of consecutive samples of consecutive rows, in less time than `needs`.

        Also returns, by field, the row of its span with which the first sample begins. Returns
        None if the samples are not consecutive, or their rows are not.
        """
        first, last = int(samples[0]), int(samples[-1])
        if not self._is_regular or last - first + 1 != len(samples):
            return None
        runs = self.source.layout.runs
        run, other = np.searchsorted(runs, (first, last), side="right").tolist()
        if run != other:  # a seam between them
            return None
        spans: dict[int, list[Span]] = {}
        starts = {}
        for name, found in self.source.locate(samples[:1]).items():
            output, number = self.source.outputs[name], int(found.leaf[0])
            assert output.pitch is not None
            starts[name] = start = int(found.rows.flat[0])
            stop = start + (len(samples) - 1) * output.pitch + found.rows.size
            leaf = self.leaves[number]
            for span in spans.get(output.store, ()):  # of another field with rows of this store
                apart = max(start, span.start) - min(stop, span.stop)
                if apart >= leaf.chunks[0]:
                    return None
                start, stop = min(start, span.start), max(stop, span.stop)
            spans[output.store] = [Span(number, start, stop, (0,) * len(leaf.shape), leaf.shape)]
        outputs = self.source.outputs
        return spans, {n: start - spans[outputs[n].store][0].start for n, start in starts.items()}

    def block(self, source: ComposedSource, samples: Indices) -> tuple[Spans, Tables]:
        """Return the spans that samples need, and where each sample is in them; see `tables`.

        Args:
            source: The source, with the random patches of an epoch.
            samples: Ascending numbers.
        """
        first, last = int(samples[0]), int(samples[-1])
        found = self._known.get((first, last)) if last - first + 1 == len(samples) else None
        if found is not None:
            return found
        simple = self.consecutive(samples)
        if simple is not None:
            spans, rows = simple
            count, outputs = np.arange(len(samples))[:, None], self.source.outputs
            return spans, {n: count * (outputs[n].pitch or 0) + row for n, row in rows.items()}
        located = source.locate(samples)
        spans = source.needs(samples, located)
        found = spans, self.tables(source, samples, spans, located)
        nbytes = REMEMBERED_SPAN * sum(map(len, spans.values()))
        nbytes += sum(table.nbytes for table in found[1].values())
        if (
            last - first + 1 == len(samples)
            and self._known_bytes + nbytes <= REMEMBERED_BYTES
            and not (self._is_random or self._differs(samples))
        ):
            self._known[first, last] = found
            self._known_bytes += nbytes
        return found

    def _differs(self, samples: Indices) -> bool:
        """Return whether one of these samples differs between epochs."""
        locate, ends = self.source.layout.locate, (Draw(share=0), Draw(share=1))
        corners = ([locate(name, samples, end).corner for end in ends] for name in self.runs)
        return any((low != high).any() for low, high in corners)

    def tables(
        self,
        source: ComposedSource,
        samples: Indices,
        spans: Spans,
        located: Mapping[str, Located] | None = None,
    ) -> Tables:
        """Return where samples are in spans that are held one after the other.

        Args:
            source: The source, with the random patches of an epoch.
            samples: Numbers of samples.
            spans: What is held.
            located: What `locate` returns for them, if it is known.
        """
        return {
            name: self._boxes(name, found, spans[source.outputs[name].store])
            if source.outputs[name].cut
            else np.array(found.index.reshape(len(samples), -1)[:, : self.columns[name]])
            for name, found in source.places(samples, spans, located).items()
        }

    def _boxes(self, name: str, found: Places, spans: Sequence[Span]) -> Indices:
        """Return the first byte of each box of a patch, and the strides of its canvas in bytes."""
        item = self.source.outputs[name].dtype.itemsize
        rows = np.array([span.stop - span.start for span in spans])
        shapes = np.array([span.shape for span in spans], np.int64)
        sizes = np.cumprod(shapes[:, :0:-1], axis=1)[:, ::-1]  # items of a row, line, ...
        strides = np.concatenate([sizes[:, 1:], np.ones((len(spans), 1), np.int64)], axis=1)
        begin = np.cumsum(rows) - rows
        first = np.cumsum(rows * sizes[:, 0]) - rows * sizes[:, 0]
        low = np.array([span.low for span in spans], np.int64)
        index = found.index.reshape(len(found.corner), -1)
        which = np.searchsorted(begin, index, side="right") - 1
        corner = ((found.corner[:, None] - low[which]) * strides[which]).sum(axis=2)
        starts = first[which] + (index - begin[which]) * sizes[which, 0] + corner
        return np.concatenate([starts, strides[which].reshape(len(index), -1)], axis=1) * item

    def needs(self, block: int) -> tuple[BlockCost, dict[int, int]]:
        """Return the cost of blocks of ``block`` samples, and the most bytes of rows by store.

        For windows of regular rows, these bytes are a bound. For other samples, they are measured
        for some blocks (all if few): those with most seams and others, with the widest patches. If
        a block needs more, its samples are read one by one, see `HeldRows`.
        """
        if block not in self._needs:
            self._needs[block] = self._measure(block)
        return self._needs[block]

    def _measure(self, block: int) -> tuple[BlockCost, dict[int, int]]:
        size, count = len(self.source), -(-len(self.source) // block)
        chosen = np.linspace(0, count - 1, min(count, MEASURED_BLOCKS)).astype(np.int64)
        seams, often = np.unique(self.source.layout.runs[1:-1] // block, return_counts=True)
        most_seams = seams[np.argsort(-often, kind="stable")[:EXAMINED_BLOCKS]]
        stores = {output.store for output in self.source.outputs.values()}
        capacity = {store: self._most_rows(store, block) for store in stores}
        measured = [store for store, nbytes in capacity.items() if not nbytes]
        own = decoded = examined = 0

        def spans_of(first: int, count: int) -> Spans:
            samples = np.arange(first, min(size, first + count))
            simple = self.consecutive(samples)
            return simple[0] if simple else self.source.needs(samples)

        blocks = np.unique(np.concatenate([chosen, most_seams])) if measured else np.unique(chosen)
        for number, first in enumerate((blocks * block).tolist()):
            examine = number % -(-len(blocks) // EXAMINED_BLOCKS) == 0
            if not (measured or examine):
                continue
            spans = widest = spans_of(first, block)
            if self._is_random:
                widest = self.source.widest_needs(np.arange(first, min(size, first + block)))
            for store in measured:
                nbytes = max(self.nbytes(spans[store]), self.nbytes(widest[store]))
                capacity[store] = max(capacity[store], nbytes)
            if examine:
                joined = sum(map(self.nbytes, spans_of(first, 2 * block).values()))
                alone = sum(map(self.nbytes, spans.values()))
                own += joined - alone or joined  # the last block has none after it
                decoded += sum(self._decoded(span) for each in spans.values() for span in each)
                examined += 1
        cost = BlockCost(sum(capacity.values()), own / examined, decoded / examined)
        return cost, capacity

    def _most_rows(self, store: int, block: int) -> int:
        """Return a bound on the bytes of any block's rows of a store; 0 if none is known.

        In a run, each sample has the rows of the one before it, shifted by the pitch. Gaps shorter
        than a chunk are held too, because rows of one chunk are read together.
        """
        source, runs = self.source, self.source.layout.runs
        names = [name for name, output in source.outputs.items() if output.store == store]
        outputs = [source.outputs[name] for name in names]
        pitch = outputs[0].pitch
        if pitch is None or any(each.cut or each.pitch != pitch for each in outputs):
            return 0
        chunk = max(source.leaves[leaf].chunks[0] for leaf in outputs[0].leaves)

        def located(samples: Indices) -> tuple[Indices, Indices]:
            found = source.locate(samples)
            rows = [found[name].rows.reshape(len(samples), -1) for name in names]
            return found[names[0]].leaf, np.concatenate(rows, axis=1)

        offsets = np.diff(np.unique(located(np.zeros(1, np.int64))[1]))

        def rows_of(samples: Indices) -> Indices:
            """Return the most rows of consecutive samples of a run."""
            long = (samples - 1) * pitch + 1  # those that the samples have at one offset
            each = np.where(offsets - long[:, None] < chunk, offsets, long[:, None])
            apart = samples * (1 + np.where(offsets < chunk, offsets, 1).sum())
            close = pitch - offsets.sum() < chunk  # rows between two samples are held too
            most = long + each.sum(axis=1)
            return np.asarray(most if close else np.minimum(most, apart))

        first, last = runs[:-1] // block * block + block, runs[1:] // block * block
        borders = np.unique(np.concatenate([runs, np.minimum(first, runs[1:]), last[last > 0]]))
        borders = borders[borders <= runs[-1]]
        held = np.zeros(len(borders) - 1, np.int64)
        for start in range(0, len(held), PIECE):
            here = slice(start, start + PIECE)
            held[here] = rows_of(np.minimum(np.diff(borders)[here], block))
        seams = runs[1:-1][runs[1:-1] % block > 0]
        clusters = 1 + int((offsets >= chunk).sum())
        for start in range(0, len(seams), PIECE):
            some = seams[start : start + PIECE]
            (before, end), (after, begin) = located(some - 1), located(some)
            gap = begin.min(axis=1) - end.max(axis=1) - 1
            if clusters > 1:  # rows of one run may be between those of another
                gap = np.full(len(some), (2 * clusters - 1) * (chunk - 1))
            gap[(before != after) | ((clusters == 1) & (gap >= chunk))] = 0
            held[np.searchsorted(borders, some)] += np.maximum(gap, 0)
        numbers = borders[:-1] // block
        begins = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
        most = int(np.add.reduceat(held, begins).max())
        return most * self.leaves[store].row_bytes

    def nbytes(self, spans: Sequence[Span]) -> int:
        """Return the bytes of spans in memory."""
        return sum(prod(span.shape) * self.leaves[span.leaf].dtype.itemsize for span in spans)

    def _decoded(self, span: Span) -> int:
        """Return the bytes of the chunks that have a part of a span."""
        leaf = self.leaves[span.leaf]
        low, high, total = (span.start, *span.low), (span.stop, *span.high), leaf.dtype.itemsize
        for first, last, chunk in zip(low, high, leaf.chunks, strict=True):
            total *= (-(-last // chunk) - first // chunk) * chunk
        return total


class HeldRows:
    """Memory for the rows that blocks need, each row once; see `held.HeldBlocks`.

    A block that does not fit into its place is not held: each of its samples is read from storage
    when it is copied. That is slow, and rare: only if it needs more than any block that was
    measured.

    Args:
        stored: The samples, and where their rows are.
        buffers: Memory of the batches.
        block: Most samples of a block.
        places: Blocks that can be held at the same time.
        seed: Seed of the random patches.
    """

    def __init__(
        self,
        stored: StoredRows,
        buffers: BatchBuffers,
        *,
        block: int,
        places: int,
        seed: int,
    ) -> None:
        self.block, self.places, self.buffers = block, places, buffers
        self.made_for = (buffers, block, places, seed)
        self._filled: set[int] = set()  # places that are read or held
        self._warned = False
        self._stored, self._source, self._leaves = stored, stored.source, stored.leaves
        self._capacity = stored.needs(block)[1]
        self._memory = {
            store: allocate(places * nbytes) for store, nbytes in self._capacity.items()
        }
        self._not_held: dict[int, tuple[ComposedSource, Indices]] = {}  # by place: its samples
        self._tables = {
            name: allocate(places * block * 8 * columns).view(np.int64).reshape(-1, columns)
            for name, columns in stored.columns.items()
        }
        self._drawn = lru_cache(4)(partial(stored.source.drawn, seed))

    # -- reading

    def fill(self, place: int, samples: Indices, epoch: int) -> None:
        """Read the rows of these samples to a place."""
        self._filled.add(place)
        source = self._drawn(epoch)
        spans, tables = self._stored.block(source, samples)
        if not self._fits(spans):
            # canvases of some patches can be larger together than those of the whole block
            first = int(samples[0]) // self.block * self.block
            spans = source.widest_needs(np.arange(first, min(first + self.block, len(source))))
            if not self._fits(spans):
                self._warn(spans)
                self._not_held[place] = source, samples
                return
            tables = self._stored.tables(source, samples, spans)
        bases = self._read(spans, place)
        first = place * self.block
        for name, table in self._tables.items():
            output, held = source.outputs[name], table[first : first + len(samples)]
            base = bases[output.store]
            held[:] = tables[name]
            if output.cut:
                held[:, : prod(output.steps)] += base
            else:
                held += base // self._leaves[output.store].row_bytes

    def _fits(self, spans: Spans) -> bool:
        return all(self._stored.nbytes(each) <= self._capacity[of] for of, each in spans.items())

    def _warn(self, spans: Spans) -> None:
        if not self._warned:
            self._warned = True
            needed = sum(map(self._stored.nbytes, spans.values()))
            log.warning(
                "a block of this stream needs %s, more than the %s that were measured: its samples "
                "are read one by one, which is slow; pass a smaller block_samples",
                *(format_bytes(needed), format_bytes(sum(self._capacity.values()))),
            )

    def _read(self, spans: Spans, place: int) -> dict[int, int]:
        """Read spans to a place; return the byte of each store's memory where they begin."""
        reads, bases = Reads(), {store: place * self._capacity[store] for store in spans}
        for store, each in spans.items():
            at = bases[store]
            for span in each:
                leaf, shape = self._leaves[span.leaf], span.shape
                out = np.ndarray(shape, leaf.dtype, self._memory[store], at)
                at += out.nbytes
                if shape[1:] == leaf.shape:
                    reads.add(leaf, span.start, span.stop, out)  # fields of one file together
                else:
                    read_span(leaf, span, out)
        reads.run()
        return bases

    def free(self, place: int) -> None:
        """Note that the samples of a place are no longer needed."""
        self._not_held.pop(place, None)
        self._filled.discard(place)

    @property
    def is_reusable(self) -> bool:
        """Whether no place is in use. If one is, an abandoned reader may still write to it."""
        return not self._filled

    # -- gathering

    def begin_batch(self) -> SlotBatch:
        """Return an empty batch in a slot of its own."""
        return SlotBatch(self, self.buffers.take(1)[0])

    def copy(self, numbers: Indices, targets: Indices) -> None:
        """Copy held samples to rows of the buffers.

        Args:
            numbers: ``place * block + i`` for sample i of a place.
            targets: The row of each.
        """
        if self._not_held:
            of = numbers // self.block
            for place in set(of.tolist()) & self._not_held.keys():
                source, samples = self._not_held[place]
                here = np.flatnonzero(of == place)
                self._copy_stored(source, samples[numbers[here] % self.block], targets[here])
            held = ~np.isin(of, list(self._not_held))
            numbers, targets = numbers[held], targets[held]
        for name, rows in self.buffers.rows.items():
            output, memory = (
                self._source.outputs[name],
                self._memory[self._source.outputs[name].store],
            )
            table, chosen = self._tables[name][numbers], targets
            if output.cut:
                shape = (len(rows), prod(output.steps), *output.inner)
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

    def _copy_stored(self, source: ComposedSource, samples: Indices, targets: Indices) -> None:
        """Read samples one by one to rows of the buffers."""
        for i, target in enumerate(targets.tolist()):
            source.take(samples[i : i + 1], self.buffers.sample(target))


class SlotBatch:
    """A batch that is gathered into a slot."""

    def __init__(self, held: HeldRows, slot: int) -> None:
        self._held, self._slot = held, slot

    def gather(self, numbers: Indices, rows: Indices | None) -> None:
        """Copy held samples to rows of the batch; None for the first rows."""
        rows = np.arange(len(numbers)) if rows is None else rows
        self._held.copy(numbers, rows + self._slot * self._held.buffers.batch)

    def finish(self, rows: int) -> dict[str, Any]:
        """Return the batch, which has ``rows`` samples, by field."""
        return self._held.buffers.hand_out(self._slot, rows)

    def drop(self) -> None:
        """Free the slot of a batch that will not be finished."""
        self._held.buffers.free.append(self._slot)


class ComposedReader:
    """Reads the rows of a block and writes its samples to their slots; one for each thread.

    Args:
        scratch: Returns memory for the rows of one block, and the slots.
        replacement: Replaces blocks that cannot be read; None raises the source's error.
    """

    def __init__(
        self, scratch: Callable[[], HeldRows], replacement: BlockReplacement | None = None
    ) -> None:
        self._rows, self._replacement = scratch(), replacement

    def read(self, read: BlockRead, target: Indices) -> None:
        """Read a block and write its selected samples to rows of the buffers."""
        which = fill_place(self._rows.fill, 0, read, self._replacement)
        self._rows.copy(which, target)
        self._rows.free(0)
