"""Blocks that cannot be read, replaced by others, so that every rank keeps the same steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import SourceError
from penstock.order import BlockOrder, derive_key
from penstock.order.blocks import StoredOrder
from penstock.quarantine import append_entry, read_entries
from penstock.sources.base import Arrays
from penstock.streaming.segments import BlockRead

log = logging.getLogger("penstock")

TRIES = 3


@dataclass(slots=True)
class BadBlocks:
    """What a loader could not read: each block is logged once, and listed once in a file.

    Args:
        quarantine: The file; None for none.
    """

    quarantine: Path | None = None
    _known: dict[tuple[int, int], object] = field(default_factory=dict)

    def report(self, start: int, stop: int, error: SourceError, **how: int) -> None:
        """Log a block and list it, unless that was done: by any thread, at any moment.

        Args:
            start: The first sample of the block.
            stop: The sample after its last one.
            error: Why it cannot be read.
            how: Further entries of its line.
        """
        mine = object()
        if self._known.setdefault((start, stop), mine) is not mine:
            return
        log.warning("samples %d:%d are replaced by those of other blocks: %s", start, stop, error)
        if self.quarantine is None:
            return
        listed = [(each.get("sample"), each.get("stop")) for each in read_entries(self.quarantine)]
        if (start, stop) not in listed:  # by another rank, or before a resume
            reason = f"{type(error).__name__}: {error}"
            append_entry(self.quarantine, {"sample": start, "stop": stop, **how, "error": reason})


@dataclass(frozen=True, slots=True)
class BlockReplacing:
    """Another block for one that cannot be read, chosen by (seed, epoch, where it starts).

    So it is the same on every rank, run and resume.

    Args:
        order: That says what the blocks are.
        bad: Where bad blocks are reported.
    """

    order: BlockOrder | StoredOrder
    bad: BadBlocks

    def others(self, read: BlockRead) -> list[int]:
        """Where the blocks begin that are read instead, one after another.

        >>> order = BlockOrder(100, seed=1, block=10, window=2)
        >>> starts = BlockReplacing(order, BadBlocks()).others(BlockRead(0, 40, 10, 0, None))
        >>> len(starts), {start % 10 for start in starts}, 40 in starts
        (3, {0}, False)
        """
        block, own = self.order.block, read.start // self.order.block
        blocks = (self.order.size - read.count) // block + 1  # that have as many samples
        if blocks == 1:
            return []
        key = derive_key(self.order.seed, "replacement", read.epoch, read.start)
        ahead = [1 + derive_key(key, attempt) % (blocks - 1) for attempt in range(TRIES)]
        return [(own + each) % blocks * block for each in ahead]

    def read(
        self, read: BlockRead, error: SourceError, samples: Callable[[int, int], Arrays]
    ) -> Arrays:
        """The samples of another block.

        Args:
            read: The block that cannot be read.
            error: Why.
            samples: Reads samples ``start : stop``.
        """
        others = self.others(read)
        for other in others:
            try:
                found = samples(other, other + read.count)
            except SourceError:  # the next one may do; re-raised if none does
                continue
            start = read.start // self.order.block * self.order.block
            stop = min(start + self.order.block, self.order.size)
            self.bad.report(start, stop, error, replaced_by=other, epoch=read.epoch)
            return found
        tried = f"nor can {TRIES} other blocks" if others else "and there is no other block"
        raise SourceError(
            f"samples {read.start}:{read.start + read.count} cannot be read, {tried} in their "
            f"place: check the storage ({error})"
        ) from error
