"""Blocks held in memory once: a batch is gathered from them when it is handed out.

Samples that overlap, such as windows of consecutive rows, would need many times the memory of
their rows if each had its own. The same is true of samples without a fixed size, which have no
slot to be written to. Such blocks are held as they are read:

- `HeldBlocks` is the memory of the blocks; implement it for another kind of data.
- `HeldTable` decides which block is held where and for how long, for any `HeldBlocks`.
- `HeldReader` reads one block to its place, in a reader thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError, SourceError
from penstock.metrics import Probe
from penstock.order import Indices
from penstock.streaming.placement import BlockReplacement
from penstock.streaming.planner import BlockRead, Part, Round

if TYPE_CHECKING:
    from penstock.streaming.held_rows import HeldRows, SlotBatch
    from penstock.streaming.ragged import RaggedBatch, RaggedBlocks

# memory for a fixed number of blocks: `fill` reads samples to a place, in several threads at once;
# `free` and `begin_batch` are called by the consumer
HeldBlocks: TypeAlias = "HeldRows | RaggedBlocks"
# a batch that is gathered from held samples, then finished or dropped
HeldBatch: TypeAlias = "SlotBatch | RaggedBatch"


@dataclass(frozen=True, slots=True)
class HeldTarget:
    """Where a read goes.

    Attributes:
        place: The place of its samples.
        index: The held sample of each row of the round's batches, to be completed.
        rows: The rows of the selected samples.
    """

    place: int
    index: npt.NDArray[np.signedinteger[Any]]
    rows: Indices


class HeldReader:
    """Reads blocks to their places; each reader thread has its own.

    Args:
        blocks: Memory of the blocks.
        replacement: Replaces blocks that cannot be read; None raises the source's error.
    """

    def __init__(self, blocks: HeldBlocks, replacement: BlockReplacement | None = None) -> None:
        self._blocks, self._replacement = blocks, replacement

    def read(self, read: BlockRead, target: HeldTarget) -> None:
        """Read the selected samples of a block, and note where they are."""
        which = fill_place(self._blocks.fill, target.place, read, self._replacement)
        target.index[target.rows] = target.place * self._blocks.block + which


def fill_place(
    fill: Callable[[int, Indices, int], None],
    place: int,
    read: BlockRead,
    replacement: BlockReplacement | None,
) -> Indices:
    """Read the selected samples of a block to a place, or those of the block that replaces it.

    Returns, for each selected sample, which sample of the place it is: a sample is read once, even
    if it is selected several times.
    """
    within, which = read.index, np.arange(read.selected)
    if read.repeats:
        within, which = np.unique(within, return_inverse=True)
    try:
        fill(place, read.start + within, read.epoch)
    except SourceError as error:
        if replacement is None:
            raise
        replacement.read(read, error, lambda start, _: fill(place, start + within, read.epoch))
    return which


@dataclass(slots=True, eq=False)
class _HeldRound:
    """A round whose blocks are read or held."""

    round: Round
    index: npt.NDArray[np.signedinteger[Any]]  # the held sample of each row of its batches, or -1
    places: list[int] = field(default_factory=list)


class HeldTable:
    """The blocks of a stream's rounds, from their reads until their last sample is handed out.

    Args:
        blocks: Memory of the blocks.
        batch: Most rows of a batch.
    """

    def __init__(self, blocks: HeldBlocks, batch: int) -> None:
        self._blocks, self._batch = blocks, batch
        small = blocks.places * blocks.block < 1 << 31
        self._number: type[np.signedinteger[Any]] = np.int32 if small else np.int64
        self._free = deque(range(blocks.places))
        self._wanted = 0  # free places that the next part waits for
        self._rounds: deque[_HeldRound] = deque()
        self._complete = 0  # rounds that are read; the others follow them
        self._ready = 0  # batches that are complete
        self._next = 0  # the next batch
        self._begun: HeldBatch | None = None  # the next batch, if a part of it was gathered

    # -- called by readers

    def open_part(self, part: Part) -> list[HeldTarget] | None:
        """Return a place for each read; None if there are too few free ones.

        Called by one reader at a time, with the parts in order.
        """
        wanted = len(part.reads)
        if len(self._free) < wanted:
            if not part.begins and len(self._rounds) == 1:  # nothing else could be freed
                raise PlanError(f"a round of windows has more than {self._blocks.places} blocks")
            self._wanted = wanted
            return None
        self._wanted = 0
        if part.begins:
            rows = (part.round.stop - part.round.first) * self._batch
            self._rounds.append(_HeldRound(part.round, np.full(rows, -1, self._number)))
        held, targets = self._rounds[-1], []
        for read in part.reads:
            place = self._free.popleft()
            held.places.append(place)
            rows_of = part.rows[read.first : read.first + read.selected]
            targets.append(HeldTarget(place, held.index, rows_of))
        return targets

    # -- called by the consumer

    @property
    def has_room(self) -> bool:
        """Whether a reader that waits for places can have them now."""
        return 0 < self._wanted <= len(self._free)

    def round_read(self) -> None:
        """Note that the next round is complete."""
        self._ready = self._rounds[self._complete].round.ready
        self._complete += 1
        self._free_rounds()

    def hand_out(self, batch: int, rows: int) -> dict[str, Any]:
        """Gather a complete batch."""
        with Probe("place"):
            return self._gather_batch(batch, rows)

    def _gather_batch(self, batch: int, rows: int) -> dict[str, Any]:
        begun, self._begun = self._begun, None
        made = begun or self._blocks.begin_batch()
        parts = [held for held in self._held() if held.round.first <= batch < held.round.stop]
        if begun is None and len(parts) == 1:
            made.gather(self._index(parts[0], batch)[:rows], None)
        else:
            for held in parts:
                self._gather_part(made, held, batch)
        finished = made.finish(rows)
        self._next = batch + 1
        self._free_rounds()
        return finished

    def _held(self) -> list[_HeldRound]:
        """Return the rounds that are read."""
        return list(self._rounds)[: self._complete]

    def _free_rounds(self) -> None:
        """Free the rounds that no later batch needs.

        If the next batch is incomplete, and is the last one that needs a round, its samples of that
        round are gathered now: a batch may be larger than all the rounds that fit into memory.
        """
        for held in self._held():
            last = held.round.stop == self._next + 1 and self._ready <= self._next
            if last:
                self._begun = self._begun or self._blocks.begin_batch()
                self._gather_part(self._begun, held, self._next)
            if last or held.round.stop <= self._next:
                self._rounds.remove(held)
                self._complete -= 1
                self._free_places(held)

    def _free_places(self, held: _HeldRound) -> None:
        for place in held.places:
            self._blocks.free(place)
        self._free.extend(held.places)

    def _gather_part(self, made: HeldBatch, held: _HeldRound, batch: int) -> None:
        numbers = self._index(held, batch)
        rows = np.flatnonzero(numbers >= 0)
        if len(rows):
            made.gather(numbers[rows], rows)

    def _index(self, held: _HeldRound, batch: int) -> Indices:
        first = (batch - held.round.first) * self._batch
        return held.index[first : first + self._batch].astype(np.int64)

    def release_all(self) -> None:
        """Free what was not handed out; no reader may be running."""
        if self._begun is not None:
            self._begun.drop()
            self._begun = None
        while self._rounds:
            self._free_places(self._rounds.popleft())
