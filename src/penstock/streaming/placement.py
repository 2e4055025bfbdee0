"""From storage to a batch: read a block, and copy each of its samples to its row.

A block that cannot be read may be replaced by another one, see `BlockReplacement`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from penstock.atomic_files import append_entry, read_entries
from penstock.errors import SourceError
from penstock.metrics import Probe
from penstock.order import BlockOrder, Indices, derive_key
from penstock.order.blocks import StoredOrder
from penstock.sources.contract import Arrays, MappedSource, Source
from penstock.streaming.buffers import BatchBuffers, allocate
from penstock.streaming.copies import PIECE_BYTES, as_items, scatter
from penstock.streaming.planner import BlockRead

Found = TypeVar("Found")

log = logging.getLogger("penstock")

REPLACEMENTS = 3  # blocks to try for one that cannot be read


class SlotReader:
    """Reads a block and writes its samples to the batches; each reader thread has its own.

    Memory-mapped storage is copied once, from the mapped page to the batch. Any other source
    fills a scratch block, which stays in the processor's cache until it is scattered from there.

    Args:
        source: Where samples are read.
        buffers: Memory of the batches.
        block: Samples in the largest block.
        replacement: Replaces blocks that cannot be read; None raises the source's error.
    """

    def __init__(
        self,
        source: Source,
        buffers: BatchBuffers,
        *,
        block: int,
        replacement: BlockReplacement | None = None,
    ) -> None:
        self._source, self._rows, self._block = source, buffers.rows, block
        self._replacement = replacement
        self._mapped = source if isinstance(source, MappedSource) else None
        self._scratch: dict[str, npt.NDArray[np.generic]] | None = None

    def read(self, read: BlockRead, target: Indices) -> None:
        """Read a block and write its selected samples.

        Args:
            read: The block.
            target: Rows of the buffers for the selected samples.
        """
        try:
            arrays = self._samples(read.start, read.start + read.count)
        except SourceError as error:
            if self._replacement is None:
                raise
            arrays = self._replacement.read(read, error, self._samples)
        with Probe("place"):
            self._place(arrays, read, target)

    def _place(self, arrays: Arrays, read: BlockRead, target: Indices) -> None:
        for name, array in arrays.items():
            rows = self._rows[name]
            samples = as_items(array, read.count, rows.dtype)
            if read.keep is None:
                scatter(samples, rows, target)
                continue
            selected = read.index
            step = max(1, PIECE_BYTES // rows.itemsize)
            for at in range(0, len(selected), step):  # the selection is a copy: bound its size
                some = samples[selected[at : at + step]]
                scatter(some, rows, target[at : at + len(some)])

    def _samples(self, start: int, stop: int) -> Arrays:
        view = None if self._mapped is None else self._mapped.view(start, stop)
        if view is not None:
            return view
        if self._scratch is None:
            count = self._block
            self._scratch = {
                name: allocate(count * each.nbytes).view(each.dtype).reshape(count, *each.shape)
                for name, each in self._source.fields.items()
            }
        self._source.read(start, stop, self._scratch)
        return {name: array[: stop - start] for name, array in self._scratch.items()}


# -- blocks that cannot be read


@dataclass(slots=True)
class BadBlocks:
    """The blocks a loader could not read. Each is logged once, and listed once in a file.

    Args:
        quarantine: The file; None for no file.
    """

    quarantine: Path | None = None
    _known: dict[tuple[int, int], object] = field(default_factory=dict)

    def report(self, start: int, stop: int, error: SourceError, **details: int) -> None:
        """Log a block and list it, once; may be called from any thread.

        Args:
            start: The first sample of the block.
            stop: The end of the block.
            error: Why it cannot be read.
            details: Further entries of its line.
        """
        mine = object()
        if self._known.setdefault((start, stop), mine) is not mine:  # atomic: no lock is needed
            return
        log.warning("samples %d:%d are replaced by those of other blocks: %s", start, stop, error)
        if self.quarantine is None:
            return
        listed = [(each.get("sample"), each.get("stop")) for each in read_entries(self.quarantine)]
        if (start, stop) not in listed:  # by another rank, or before a resume
            reason = f"{type(error).__name__}: {error}"
            entry = {"sample": start, "stop": stop, **details, "error": reason}
            append_entry(self.quarantine, entry)


@dataclass(frozen=True, slots=True)
class BlockReplacement:
    """Another block for one that cannot be read, so that all ranks have the same steps.

    The choice depends only on (seed, epoch, start of the block): it is the same on every rank,
    in every run and after a resume.

    Args:
        order: Defines the blocks.
        bad: Where bad blocks are reported.
    """

    order: BlockOrder | StoredOrder
    bad: BadBlocks

    def candidates(self, read: BlockRead) -> list[int]:
        """Return the starts of the blocks to try, in this order.

        >>> order = BlockOrder(100, seed=1, block=10, window=2)
        >>> read = BlockRead(0, 40, 10, 0, None, 10)
        >>> starts = BlockReplacement(order, BadBlocks()).candidates(read)
        >>> len(starts), {start % 10 for start in starts}, 40 in starts
        (3, {0}, False)
        """
        block, own = self.order.block, read.start // self.order.block
        blocks = (self.order.size - read.count) // block + 1  # with at least as many samples
        if blocks == 1:
            return []
        key = derive_key(self.order.seed, "replacement", read.epoch, read.start)
        ahead = [1 + derive_key(key, i) % (blocks - 1) for i in range(REPLACEMENTS)]
        return [(own + each) % blocks * block for each in ahead]

    def read(
        self, read: BlockRead, error: SourceError, samples: Callable[[int, int], Found]
    ) -> Found:
        """Return what ``samples`` returns for another block.

        Args:
            read: The block that cannot be read.
            error: Why it cannot be read.
            samples: Reads samples ``start:stop``.
        """
        candidates = self.candidates(read)
        for other in candidates:
            try:
                found = samples(other, other + read.count)
            except SourceError:  # try the next one
                continue
            start = read.start // self.order.block * self.order.block
            stop = min(start + self.order.block, self.order.size)
            self.bad.report(start, stop, error, replaced_by=other, epoch=read.epoch)
            return found
        tried = f"nor {REPLACEMENTS} other blocks" if candidates else "and there is no other block"
        raise SourceError(
            f"cannot read samples {read.start}:{read.start + read.count}, {tried}: check the "
            f"storage ({error})"
        ) from error
