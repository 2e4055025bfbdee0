"""Streams of rows of different lengths: blocks are held, and batches are gathered from them.

A block is read as one span of items. Where each of its samples begins in memory is noted in a
table, so that a batch is one copy of each sample's bytes, in C. Nothing is padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import format_bytes, size_text
from penstock.errors import PlanError, SourceError
from penstock.native import native
from penstock.order import Indices
from penstock.ragged import Ragged, csr_tensor, dense_tensor
from penstock.sources.contract import Field, Rows, Source, Sparse, varies, view_of
from penstock.sources.ragged_rows import lengths_of, offsets_of, ragged_fields
from penstock.sources.thread_buffers import ReusedMemory
from penstock.streaming.budget import (
    BlockCost,
    HeldDemand,
    Pace,
    resident_bytes,
    resident_fields,
)
from penstock.streaming.buffers import allocate
from penstock.streaming.copies import copy_bytes
from penstock.streaming.stream_input import ResidentSource, StreamInput

BATCHES = 2  # batches in memory: the one in use and the one being gathered
SPARE_ROOM = 1.25  # a block may get memory of an earlier one that is larger, by up to this much
OFFSETS = "\0offsets"  # after a field's name: its offsets, in a batch that is not assembled yet


# -- memory


class BlockSizes:
    """The bytes of the blocks of a ragged source, for the memory budget.

    Args:
        source: A source with ragged fields.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._largest: dict[int, Indices] = {}
        self._longest: Indices | None = None

    def _bytes(self, borders: Indices) -> Indices:
        """Return the bytes of the samples between each two borders."""
        found = np.zeros(len(borders) - 1, np.int64)
        for name, each in self._source.fields.items():
            items = offsets_of(self._source, name)[borders] if each.ragged else borders
            found += np.diff(items) * each.nbytes
        return found

    def largest(self, block: int, count: int) -> int:
        """Return the bytes of the ``count`` largest blocks: no window of them has more."""
        size, block = len(self._source), max(1, min(block, len(self._source)))
        if block not in self._largest:
            each = np.sort(self._bytes(np.append(np.arange(0, size, block), size)))[::-1]
            self._largest[block] = np.append(0, np.cumsum(each))
        sums = self._largest[block]
        return int(sums[min(count, len(sums) - 1)])

    def longest(self, samples: int) -> int:
        """Return the bytes of the longest samples: no batch of this size has more."""
        if self._longest is None:
            each = np.sort(self._bytes(np.arange(len(self._source) + 1)))[::-1]
            self._longest = np.append(0, np.cumsum(each))
        return int(self._longest[min(samples, len(self._longest) - 1)])

    @property
    def mean(self) -> int:
        """Bytes of a sample, on average."""
        return -(-self.largest(len(self._source), 1) // max(1, len(self._source)))

    def check(self, budget: int, block: int, needed: int) -> None:
        """Raise a `PlanError` if a single block does not fit into the budget.

        Args:
            budget: Bytes of all buffers together.
            block: Samples of a block.
            needed: Bytes that would be enough.
        """
        size, block = len(self._source), max(1, min(block, len(self._source)))
        if self.largest(block, 1) <= budget:
            return
        borders = np.append(np.arange(0, size, block), size)
        sizes = self._bytes(borders)
        worst = int(np.argmax(sizes))
        first, last, nbytes = int(borders[worst]), int(borders[worst + 1]), int(sizes[worst])
        what = f"sample {first} has" if last == first + 1 else f"samples {first}:{last} have"
        smaller = "" if block == 1 else ", or smaller blocks with block_samples="
        raise PlanError(
            f"{what} {format_bytes(nbytes)}, more than memory_budget={format_bytes(budget)}: pass "
            f'memory_budget="{size_text(needed)}"{smaller}, or leave them out with '
            "source.select"
        )


@dataclass(frozen=True, slots=True)
class RaggedDemand(HeldDemand):
    """The memory that a stream of ragged rows needs."""

    source: RaggedInput

    def buffers(self, block: int, round_samples: int, lanes: int) -> int:
        """Return the bytes of the largest blocks held together, and of the largest batches."""
        blocks = self.places(block, round_samples, lanes)
        held = int(SPARE_ROOM * self.source.sizes.largest(block, blocks))
        batches = BATCHES * min(held, self.source.sizes.longest(self.batch))
        return held + batches + blocks * block * 8 * self.numbers + self._fixed()


class RaggedInput(StreamInput):
    """A ragged source as a stream reads it.

    Args:
        source: A source with ragged fields.
        budget: Bytes for all buffers together.
    """

    def __init__(self, source: Source, budget: int) -> None:
        self._given, self._budget, self.sizes = source, budget, BlockSizes(source)
        chunks = getattr(source, "chunks", {})
        in_place = view_of(source, 0, min(len(source), 2 * source.block_samples + 1)) is not None
        paces = {}
        for name, each in source.fields.items():
            items = int(offsets_of(source, name)[-1]) if each.ragged else len(source)
            mean = -(-each.nbytes * items // max(1, len(source)))
            rows = 0 if in_place else chunks.get(name, (source.block_samples,))[0]
            paces[name] = Pace(len(source), mean, rows, rows * mean, mean)
        ragged = ragged_fields(source, source.fields)
        found = [] if varies(source) else resident_fields(paces, budget)
        names = [name for name in found if name not in ragged]
        kept = ResidentSource(source, names) if names else None
        self.resident = {} if kept is None else {id(source): kept}
        self.resident_bytes = resident_bytes([paces[name] for name in names])
        self.paces = [pace for name, pace in paces.items() if name not in names]
        self.chunk_bytes = max((pace.chunk_bytes for pace in self.paces), default=0)
        self.decodes_first = getattr(source, "decodes_first", False)
        self.sample_bytes = self.sizes.mean
        self.source = kept or source
        self.rows = None
        self.numbers_per_sample = 2 * len(ragged)

    def with_budget(self, budget: int) -> RaggedInput:
        """Return the same source with another budget."""
        other = RaggedInput(self._given, budget)
        other.sizes = self.sizes
        return other

    def cost(self, block: int) -> BlockCost:
        """Return the cost of a block of this many samples."""
        decoded = sum(pace.decoded(block) for pace in self.paces)
        return BlockCost(self.sizes.largest(block, 1), block * self.sample_bytes, decoded)


# -- blocks


class RaggedBlocks:
    """Blocks of a ragged source in memory; see `held.HeldBlocks`.

    Args:
        source: The source.
        block: Most samples of a block.
        places: Blocks that can be held at the same time.
        pin: Page-locked memory for the batches, for copies to an accelerator.
    """

    def __init__(self, source: Source, *, block: int, places: int, pin: bool) -> None:
        self.block, self.places, self.pin = block, places, pin
        self.source, self.fields = source, source.fields
        self.ragged = ragged_fields(source, source.fields)
        # fields with the same offsets, such as values and columns of a sparse matrix, share them
        arrays = {name: offsets_of(source, name) for name in self.ragged}
        self.group = {name: id(array) for name, array in arrays.items()}
        self.lengths = {group: _table(places * block) for group in self.group.values()}
        self.begins = {name: _table(places * block) for name in self.ragged}  # addresses
        self.fixed = {
            name: allocate(places * block * each.nbytes).view(each.dtype).reshape(-1, *each.shape)
            for name, each in source.fields.items()
            if not each.ragged
        }
        # matrices that become dense when they are gathered; those for an accelerator, there
        self.dense = {
            name: each.sparse
            for name, each in source.fields.items()
            if each.sparse and each.sparse.dense and each.dtype.str in ("<f4", "<f8")
            if source.fields[each.sparse.columns].dtype.str in ("<i4", "<i8")
        }
        if native is None or native.dense_rows is None or pin:
            self.dense = {}
        self._items: list[dict[str, Rows]] = [{} for _ in range(places)]
        self._spare: dict[str, list[Rows]] = {name: [] for name in self.ragged}
        self.batches = {name: ReusedMemory() for name in source.fields}

    def fill(self, place: int, samples: Indices, epoch: int) -> None:
        """Read samples to a place."""
        start, stop = int(samples[0]), int(samples[-1]) + 1
        first, count = place * self.block, len(samples)
        # all samples between them, too: they are stored together
        out = {name: rows[first : first + stop - start] for name, rows in self.fixed.items()}
        for name in self.ragged:
            offsets = offsets_of(self.source, name)
            out[name] = self._memory(name, int(offsets[stop] - offsets[start]))
        self.source.read(start, stop, out)
        check_columns(self.fields, out, start, stop)
        self._items[place] = {name: out[name] for name in self.ragged}
        here = slice(first, first + count)
        these = slice(start, stop) if count == stop - start else samples
        for name in self.ragged:
            offsets, begins = offsets_of(self.source, name), self.begins[name][here]
            lengths = self.lengths[self.group[name]][here]
            np.subtract(offsets[1:][these], offsets[these], out=lengths)
            np.subtract(offsets[these], offsets[start], out=begins)
            begins *= self.fields[name].nbytes
            begins += out[name].ctypes.data
        if count < stop - start:
            for rows in self.fixed.values():
                rows[here] = rows[first + samples - start]

    def _memory(self, name: str, items: int) -> Rows:
        """Return memory for the items of a block: that of an earlier one, if its size is similar.

        New memory costs a page fault every 4 KB, about as much as decoding.
        """
        each, spare = self.fields[name], self._spare[name]
        try:
            memory = spare.pop()  # atomic: readers need no lock
        except IndexError:
            memory = np.empty(0, np.uint8)
        nbytes = items * each.nbytes
        if not nbytes <= memory.size <= SPARE_ROOM * nbytes:
            memory = np.empty(int((1 + SPARE_ROOM) / 2 * nbytes), np.uint8)
        return np.ndarray((items, *each.shape), each.dtype, memory)

    def free(self, place: int) -> None:
        """Forget the samples of a place."""
        for name, rows in self._items[place].items():
            assert isinstance(rows.base, np.ndarray)
            self._spare[name].append(rows.base)
        self._items[place] = {}

    def empty(self, name: str, rows: int) -> torch.Tensor:
        """Return memory for a field of a batch: that of an earlier batch that is gone."""
        each = self.fields[name]
        shape = (rows, *each.shape)
        if self.pin:
            kind = torch.from_numpy(np.empty(0, each.dtype)).dtype
            return torch.empty(shape, dtype=kind, pin_memory=True)
        return torch.from_numpy(self.batches[name].empty(shape, each.dtype))

    def matrix(self, name: str, sparse: Sparse, numbers: Indices, lengths: Indices) -> torch.Tensor:
        """Return held samples of a sparse field as a dense matrix."""
        assert native is not None and native.dense_rows is not None
        values, columns = (self.begins[each][numbers] for each in (name, sparse.columns))
        out = self.batches[name].empty((len(numbers), sparse.width), self.fields[name].dtype)
        native.dense_rows(
            out.ctypes.data, out.itemsize, values.ctypes.data, columns.ctypes.data,
            self.fields[sparse.columns].nbytes, lengths.ctypes.data, *out.shape,
        )  # fmt: skip
        return torch.from_numpy(out)

    def begin_batch(self) -> RaggedBatch:
        """Return an empty batch."""
        return RaggedBatch(self)


def check_columns(fields: Mapping[str, Field], rows: Mapping[str, Rows], a: int, b: int) -> None:
    """Raise ``SourceError`` for columns outside of a sparse matrix: torch does not check them."""
    for name, each in fields.items():
        columns = None if each.sparse is None else rows[each.sparse.columns]
        if each.sparse is None or columns is None or not columns.size:
            continue
        # as unsigned numbers, negative ones are very large: one pass finds both
        if int(columns.view(f"u{columns.itemsize}").max()) >= each.sparse.width:
            low, high = int(columns.min()), int(columns.max())
            raise SourceError(
                f"samples {a}:{b} of field {name!r} have columns from {low} to {high}, but the "
                f"matrix has {each.sparse.width}: the file is damaged; write or copy it again"
            )


def _table(count: int) -> npt.NDArray[np.int64]:
    return allocate(count * 8).view(np.int64)  # backed by memory only where it is used


# -- batches


class _Part(NamedTuple):
    """Gathered samples: rows of the batch (None for all), and lengths and values by field."""

    rows: Indices | None
    lengths: dict[int, Indices]
    values: dict[str, torch.Tensor]


class RaggedBatch:
    """A batch that is being gathered; see `held.HeldBatch`."""

    def __init__(self, blocks: RaggedBlocks) -> None:
        self._blocks = blocks
        self._parts: list[_Part] = []

    def gather(self, numbers: Indices, rows: Indices | None) -> None:
        """Copy held samples."""
        held = self._blocks
        lengths = {group: table[numbers] for group, table in held.lengths.items()}
        totals = {group: int(each.sum()) for group, each in lengths.items()}
        dense = held.dense if rows is None else {}  # a part is joined with others first
        values = {
            name: held.matrix(name, sparse, numbers, lengths[held.group[name]])
            for name, sparse in dense.items()
        }
        made = {*dense, *(sparse.columns for sparse in dense.values())}
        for name, each in held.fields.items():
            if name in made:
                continue
            count = totals[held.group[name]] if each.ragged else len(numbers)
            tensor = values[name] = held.empty(name, count)
            if each.ragged:
                sizes = lengths[held.group[name]] * each.nbytes
                copy_bytes(held.begins[name][numbers], sizes, tensor.data_ptr())
            else:
                np.take(held.fixed[name], numbers, axis=0, out=tensor.numpy(), mode="clip")
        self._parts.append(_Part(rows, lengths, values))

    def finish(self, rows: int) -> dict[str, Any]:
        """Return values and offsets by field, see `assembled`."""
        part = self._parts[0]
        if part.rows is not None:
            part = _joined(self._parts, self._blocks)
        batch: dict[str, torch.Tensor] = {}
        offsets = {group: _offsets(each, self._blocks.pin) for group, each in part.lengths.items()}
        for name, values in part.values.items():
            batch[name] = values
            if name in self._blocks.group:
                batch[name + OFFSETS] = offsets[self._blocks.group[name]]
        return batch

    def drop(self) -> None:
        """Free the memory."""
        self._parts.clear()


def _joined(parts: list[_Part], held: RaggedBlocks) -> _Part:
    """Return several parts as one, with the samples in the order of their rows."""
    order = np.argsort(np.concatenate([part.rows for part in parts if part.rows is not None]))
    lengths = {n: np.concatenate([part.lengths[n] for part in parts])[order] for n in held.lengths}
    values = {}
    for name, each in held.fields.items():
        begins, sizes = [], []
        for part in parts:
            items = part.lengths[held.group[name]] if each.ragged else np.ones_like(part.rows)
            sizes.append(items * each.nbytes)
            begins.append(part.values[name].data_ptr() + np.cumsum(sizes[-1]) - sizes[-1])
        size = np.concatenate(sizes)[order]
        values[name] = held.empty(name, int(size.sum()) // each.nbytes)
        copy_bytes(np.concatenate(begins)[order], size, values[name].data_ptr())
    return _Part(None, lengths, values)


def _offsets(lengths: Indices, pin: bool) -> torch.Tensor:
    offsets = torch.empty(len(lengths) + 1, dtype=torch.int64, pin_memory=pin)
    offsets[0] = 0
    np.cumsum(lengths, out=offsets.numpy()[1:])
    return offsets


class Assembly:
    """Makes the batches that the user gets: ragged fields, and sparse matrices of two of them.

    Args:
        fields: The fields of the source.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        self._columns = {each.sparse.columns for each in fields.values() if each.sparse is not None}
        self._dense = ReusedMemory()

    def __call__(self, batch: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Return a batch.

        Args:
            batch: Tensors by field, and offsets, on any device.
        """
        found: dict[str, Any] = {}
        for name, each in self._fields.items():
            if each.sparse is not None:
                columns = batch.get(each.sparse.columns)
                found[name] = batch[name]  # already the matrix, if it has no columns
                if columns is not None:
                    found[name] = self._matrix(batch[name], columns, batch[name + OFFSETS], each)
            elif name not in self._columns:
                ragged = each.ragged
                found[name] = Ragged(batch[name], batch[name + OFFSETS]) if ragged else batch[name]
        return found

    def _matrix(
        self, values: torch.Tensor, columns: torch.Tensor, offsets: torch.Tensor, each: Field
    ) -> torch.Tensor:
        assert each.sparse is not None
        width, rows = each.sparse.width, len(offsets) - 1
        if not each.sparse.dense:
            return csr_tensor(values, columns, offsets, width)
        out = None
        if values.device.type == "cpu":
            out = torch.from_numpy(self._dense.empty((rows, width), each.dtype))
        return dense_tensor(values, columns, offsets, width, out=out)


def batch_of(source: Source, indices: Indices) -> dict[str, Any]:
    """Return samples of a source as a batch, by field.

    Args:
        source: Any source.
        indices: The samples, in any order.
    """
    out, offsets = {}, {}
    for name, each in source.fields.items():
        rows = len(indices)
        if each.ragged:
            ends = np.append(0, np.cumsum(lengths_of(source, name, indices)))
            offsets[name + OFFSETS], rows = torch.from_numpy(ends), int(ends[-1])
        out[name] = np.empty((rows, *each.shape), each.dtype)
    source.take(indices, out)
    batch = {name: torch.from_numpy(rows) for name, rows in out.items()}
    if not offsets:
        return batch
    check_columns(source.fields, out, int(indices.min()), int(indices.max()) + 1)
    return Assembly(source.fields)(batch | offsets)
