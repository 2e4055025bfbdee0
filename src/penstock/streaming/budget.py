"""How much memory a stream may use, and the blocks, windows and lanes that fit into it.

Pure arithmetic: nothing here reads data or allocates buffers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.arguments import format_bytes, parse_bytes, size_text, whole_number
from penstock.errors import PlanError
from penstock.order import BlockOrder

if TYPE_CHECKING:
    from penstock.streaming.stream_input import StreamInput

Name = TypeVar("Name")

log = logging.getLogger("penstock")

CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 62  # of a container without a limit

LENT_BATCHES = 4  # batches that the user can hold without a copy
ROUNDS_HELD = 2  # the round in use and the round being read
SLOT_OBJECT_BYTES = 200  # Python objects that describe one batch in memory
BLOCK_OBJECT_BYTES = 160  # Python objects that describe one planned read
TARGET_BYTES = 8  # destination of one row of a block
UNCOUNTED = 64  # bookkeeping below 1/64 of the buffers is within the tolerance of the budget

MOST_DECODED = 1.27  # bytes decoded per byte needed; above it blocks become larger if possible
FEW_BYTES = 1_500_000  # a block of patches of fewer bytes takes longer to plan than to copy
RESIDENT_SHARE = 16  # fields that take this part of the budget may be kept in memory whole
MIXED_BLOCKS = 16  # a window should mix this many blocks before blocks may become larger
FEWEST_BLOCKS = 32  # a lane should have this many blocks in an epoch, for the same reason
NARROW_BYTES = 64  # a sample smaller than this takes longer to shuffle than to read
MIXED_NARROW = 1 << 24  # most narrow samples in a window: the first batch waits for all of them
ARGUMENTS = {"block": "block_samples", "window": "window_blocks", "lanes": "lanes"}


def usable_cores() -> int:
    """Return the number of cores that this process may use, within affinity and cgroup limits."""
    linux = hasattr(os, "sched_getaffinity")
    return min(len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1, quota_cores(CGROUP))


@cache
def quota_cores(cgroup: Path) -> int:
    """Return the cores a container may use; `UNLIMITED` without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return UNLIMITED if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return UNLIMITED


class BlockCost(NamedTuple):
    """The cost of a block of samples, in bytes.

    Args:
        nbytes: Most bytes of the rows that it needs.
        own_bytes: Bytes of rows that it needs and the block before it does not.
        decoded_bytes: Bytes that are decoded for it.
    """

    nbytes: int
    own_bytes: float
    decoded_bytes: float


@dataclass(frozen=True, slots=True)
class Demand:
    """The memory that a stream needs: buffers for samples, and bookkeeping of their destinations.

    Bookkeeping is negligible for wide rows, but larger than the data for rows of a few bytes.
    Temporary arrays of constant size (about 30 MB at most) are not counted.

    Args:
        source: What is read: how it is stored, and the cost of a block.
        batch: Samples in one rank's batch.
        whole: Samples in a step over all ranks.
        threads: Reader threads; each has its own scratch block.
        extra_bytes: Bytes that a sample takes beyond its fields.
        lent: Batches that the user can hold without a copy.
    """

    source: StreamInput
    batch: int
    whole: int
    threads: int
    extra_bytes: int = 0
    lent: int = LENT_BATCHES

    def batch_bytes(self, round_samples: int) -> int:
        """Return the bytes of the batches in memory."""
        sample_bytes = self.source.sample_bytes + self.extra_bytes
        return self.slots(round_samples) * self.batch * sample_bytes

    def slots(self, round_samples: int) -> int:
        """Return the number of batches in memory for rounds of ``round_samples`` samples.

        A round can touch one extra batch at each end, and one that ends an epoch early.
        """
        return ROUNDS_HELD * (-(-round_samples // self.whole) + 3) + self.lent

    def nbytes(self, *, block: int, round_samples: int, lanes: int) -> int:
        """Return the bytes of buffers and bookkeeping together."""
        buffers = self.buffers(block, round_samples, lanes)
        return buffers + max(0, self._bookkeeping(block, round_samples) - buffers // UNCOUNTED)

    def buffers(self, block: int, round_samples: int, lanes: int) -> int:
        """Return the bytes of all batches and of each thread's scratch memory."""
        scratch = self.threads * self.source.cost(block).nbytes
        return self.batch_bytes(round_samples) + scratch + self._fixed()

    def _fixed(self) -> int:
        # A source needs two chunks of its own: one as stored, one decoded only in part.
        decoding = self.threads * 2 * decoding_bytes(self.source.chunk_bytes)
        return self.source.resident_bytes + decoding

    def _bookkeeping(self, block: int, round_samples: int) -> int:
        blocks = -(-round_samples * self.batch // self.whole // block)
        objects = self.slots(round_samples) * SLOT_OBJECT_BYTES + blocks * BLOCK_OBJECT_BYTES
        return objects + (self.threads + 2) * block * TARGET_BYTES  # in reads, and planned ahead

    def largest_window(self, budget: int, *, size: int, block: int, lanes: int) -> int:
        """Return the most blocks a lane's window can have in ``budget`` bytes; 0 if none fits."""
        low, high = 0, max(1, size // block // lanes)
        while low < high:
            middle = (low + high + 1) // 2
            samples = min(size, lanes * (middle + 1) * block)
            fits = self.nbytes(block=block, round_samples=samples, lanes=lanes) <= budget
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


@dataclass(frozen=True, slots=True)
class HeldDemand(Demand):
    """The memory of a stream that holds blocks, and gathers each batch when it is handed out.

    Args:
        numbers: Integers for each sample that say where it is.
        drop_last: Whether incomplete batches are dropped.
        blocks: For a `BlockRounds`: returns the most blocks that a lane's rows of a round can be
            from, given their number and the block size. None for the windows of a `BlockOrder`.
    """

    numbers: int = 1
    drop_last: bool = False
    blocks: Callable[[int, int], int] | None = None

    def slots(self, round_samples: int) -> int:
        """Return the number of batches in memory: the lent ones, and one to gather the next."""
        return self.lent + 1

    def places(self, block: int, round_samples: int, lanes: int) -> int:
        """Return the number of blocks in memory.

        A rank reads its own lanes only, if every step has an equal number of samples of each lane.
        A lane's window can have a part of two leftover blocks.
        """
        world = self.whole // self.batch
        regular = self.drop_last and self.whole % lanes == 0 and lanes % world == 0
        mine = lanes // world if regular else lanes
        rows = -(-round_samples // lanes)
        blocks = -(-rows // block) + 2 if self.blocks is None else self.blocks(rows, block)
        return ROUNDS_HELD * mine * blocks

    def buffers(self, block: int, round_samples: int, lanes: int) -> int:
        """Return the bytes of all blocks and batches."""
        block_bytes = self.source.cost(block).nbytes + 8 * self.numbers * block
        blocks = self.places(block, round_samples, lanes) * block_bytes
        return blocks + self.batch_bytes(round_samples) + self._fixed()

    def _bookkeeping(self, block: int, round_samples: int) -> int:
        index = ROUNDS_HELD * 4 * (round_samples + 3 * self.whole) * self.batch // self.whole
        # explicit: super() is not available in dataclasses with slots
        return Demand._bookkeeping(self, block, round_samples) + index


def decoding_bytes(chunk_bytes: int) -> int:
    """Return the bytes a source allocates to decode a chunk, including headers and spare room.

    >>> decoding_bytes(0), decoding_bytes(80_000), decoding_bytes(2_000_000)
    (0, 94096, 4194304)
    """
    if chunk_bytes == 0:
        return 0
    roomy = chunk_bytes + chunk_bytes // 8 + 4096
    return roomy if roomy < 1 << 20 else max(roomy, 4 << 20)


class Pace(NamedTuple):
    """How a field is stored.

    Args:
        rows: Number of its rows.
        row_bytes: Bytes of a row.
        chunk_rows: Rows that are decoded together; 0 if none are decoded.
        chunk_bytes: Bytes that are decoded together: fewer than of whole rows if a row has several
            chunks.
        whole_bytes: Bytes of a row with all of its last chunks, which may end after it.
    """

    rows: int
    row_bytes: int
    chunk_rows: int
    chunk_bytes: int
    whole_bytes: int = 0

    def decoded_in_all(self, block: int) -> int:
        """Return the bytes decoded for all rows in blocks of ``block`` rows.

        >>> Pace(rows=12, row_bytes=2, chunk_rows=4, chunk_bytes=8, whole_bytes=2).decoded_in_all(6)
        32
        """
        chunk, borders = max(1, self.chunk_rows), -(-self.rows // block) - 1
        # the chunks of every border between two blocks are decoded twice, unless one begins there
        twice = borders - borders // (chunk // gcd(block, chunk))
        return (-(-self.rows // chunk) + twice) * chunk * self.whole_bytes

    def decoded(self, rows: int) -> int:
        """Return the bytes decoded for ``rows`` rows that begin where a chunk begins."""
        chunk = max(1, self.chunk_rows)
        return -(-rows // chunk) * chunk * self.row_bytes


def resident_fields(paces: Mapping[Name, Pace], budget: int) -> list[Name]:
    """Return the fields to keep in memory whole, so that they are decoded once.

    These are fields with longer chunks than the widest one, such as labels in a single chunk,
    which would be decoded again for every block. All of them together have `RESIDENT_SHARE` of
    the budget.

    >>> x, y = Pace(40_000, 8_000, 512, 4_096_000), Pace(40_000, 8, 40_000, 320_000)
    >>> resident_fields({"x": x, "y": y}, budget=10**9), resident_fields({"x": x, "y": y}, 10**6)
    (['y'], [])
    """
    widest = max(paces.values(), key=lambda pace: pace.row_bytes)
    left, found = budget // RESIDENT_SHARE, []
    for name, pace in sorted(paces.items(), key=lambda item: item[1].rows * item[1].row_bytes):
        left -= pace.rows * pace.row_bytes if pace.chunk_rows > widest.chunk_rows else 0
        if pace.chunk_rows > widest.chunk_rows and left >= 0:
            found.append(name)
    return found


def resident_bytes(paces: Collection[Pace]) -> int:
    """Return the bytes of resident fields, and of the one thread that decodes them."""
    largest = max((decoding_bytes(pace.chunk_bytes) for pace in paces), default=0)
    return sum(pace.rows * pace.row_bytes for pace in paces) + 2 * largest


@dataclass(frozen=True, slots=True)
class Geometry:
    """Block, window and lanes as passed by the user or restored from a state; None if neither."""

    block: int | None = None
    window: int | None = None
    lanes: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                whole_number(ARGUMENTS[field.name], value, minimum=1)


class ExplainedValue(NamedTuple):
    """A number and the reason for it."""

    value: int
    why: str


class Resolved(NamedTuple):
    """The geometry of a stream, with a reason for each value."""

    block: ExplainedValue
    window: ExplainedValue
    lanes: ExplainedValue


@dataclass(frozen=True, slots=True)
class Resolver:
    """Chooses blocks, windows and lanes that fit into a memory budget.

    Args:
        demand: The memory that a geometry needs.
        samples: Samples in the dataset.
        natural: Samples in a storage chunk of the widest field.
        budget: Bytes for all buffers together.
        again: Returns the resolver for another budget, geometry and batch size.
        in_order: The stream is not shuffled; windows only need to keep the readers busy.
        rounds: For orders whose rounds have a fixed number of samples, whichever blocks they are
            from: returns the most samples of a round, given block, window and lanes. None for the
            rounds of a `BlockOrder`.
    """

    demand: Demand
    samples: int
    natural: int
    budget: int
    again: Callable[[int, Geometry, int], Resolver]
    in_order: bool
    rounds: Callable[[int, int, int], int] | None = None

    def resolve(self, asked: Geometry, adopted: Geometry, *, ranks: int) -> Resolved:
        """Return the geometry: as asked, else from a state, else from storage and budget."""
        lanes = self._given(asked.lanes, adopted.lanes) or ExplainedValue(ranks, "one per rank")
        if self.in_order:
            lanes = ExplainedValue(1, "in order")
        block = self._given(asked.block, adopted.block) or self._block(lanes.value)
        window = self._given(asked.window, adopted.window) or self._window(block.value, lanes.value)
        return Resolved(block, window, lanes)

    def round_samples(self, resolved: Resolved) -> int:
        """Return the samples in a round of windows, over all lanes."""
        block, window, lanes = (choice.value for choice in resolved)
        if self.rounds is not None:
            return self.rounds(block, window, lanes)
        if self.in_order:
            return min(block * window, self.samples)
        return BlockOrder(self.samples, 0, block, window, lanes).window_samples * lanes

    def needed(self, resolved: Resolved) -> int:
        """Return the bytes of memory for a geometry."""
        block = min(resolved.block.value, self.samples)
        lanes = resolved.lanes.value
        return self.demand.nbytes(
            block=block, round_samples=self.round_samples(resolved), lanes=lanes
        )

    def check(self, asked: Geometry, adopted: Geometry, *, ranks: int) -> Resolved:
        """Return what `resolve` returns, if it fits into the budget.

        Raises:
            PlanError: It does not fit. The message names arguments that would.
        """
        resolved = self.resolve(asked, adopted, ranks=ranks)
        needed = self.needed(resolved)
        if needed <= self.budget:
            return resolved
        block, samples = min(resolved.block.value, self.samples), self.round_samples(resolved)
        buffers = self.demand.buffers(block, samples, resolved.lanes.value)
        if adopted != Geometry() and buffers <= self.budget:
            log.warning(
                "the geometry of this state needs %s, more than memory_budget=%s: it was saved "
                "when bookkeeping was not counted",
                *(format_bytes(needed), format_bytes(self.budget)),
            )
            return resolved
        window = resolved.window.value
        what = "one block" if window == 1 else f"a window of {window:,} blocks"
        what += f" of {block:,} sample{'' if block == 1 else 's'}"
        raise PlanError(
            f"memory_budget={format_bytes(self.budget)} is too small: {what} "
            f"needs {format_bytes(needed)} of buffers; pass "
            + " or ".join(self._advice(needed, asked, adopted, resolved, ranks=ranks))
        )

    def _advice(
        self, needed: int, asked: Geometry, adopted: Geometry, found: Resolved, *, ranks: int
    ) -> list[str]:
        """Return alternative arguments; any one of them would fit into the budget."""

        def needs(budget: int, asked: Geometry, batch: int = self.demand.batch) -> int:
            resolver = self.again(budget, asked, batch)
            return resolver.needed(resolver.resolve(asked, adopted, ranks=ranks))

        enough = parse_bytes(size_text(needed))
        while (more := needs(enough, asked)) > enough:
            enough = parse_bytes(size_text(more))  # a larger budget may choose larger blocks
        advice = [f'memory_budget="{size_text(enough)}"']
        if adopted.window is None and asked.window is not None:
            for window in _halves(asked.window):
                if needs(self.budget, replace(asked, window=window)) <= self.budget:
                    return [*advice, f"window_blocks={window}"]
        if adopted.block is None:
            for block in _halves(min(found.block.value, self.samples)):
                if needs(self.budget, replace(asked, block=block)) <= self.budget:
                    return [*advice, f"block_samples={block}"]
        for batch in _halves(self.demand.batch):
            if needs(self.budget, asked, batch) <= self.budget:
                return [*advice, f"batch_size={batch}"]
        return advice

    def _given(self, asked: int | None, adopted: int | None) -> ExplainedValue | None:
        if asked is not None:
            return ExplainedValue(asked, "given")
        return None if adopted is None else ExplainedValue(adopted, "restored from a state")

    def _block(self, lanes: int) -> ExplainedValue:
        """Return the block size: a storage chunk, or several.

        Several, if parts of chunks would be decoded again, or if patches of one chunk have few
        bytes: finding what to read takes as long for a few patches as for many.
        """
        natural = block = min(self.natural, self.samples)
        if self.demand.source.decodes:
            why = "to decode fewer of them twice"
            for larger in self._larger():
                again = self.decoded_per_byte(block)
                if again <= MOST_DECODED and not self._is_small(block):
                    break
                if self.samples // larger < FEWEST_BLOCKS * lanes or not self._mixes(larger, lanes):
                    break
                after = self.decoded_per_byte(larger)
                if again <= MOST_DECODED and after <= again:
                    block, why = larger, "which are small"
                elif after < again:
                    block = larger
            if block == natural:
                return ExplainedValue(natural, "the storage's chunking")
            return ExplainedValue(block, f"{block / natural:.3g} storage chunks, {why}")
        while block > 1 and not self._mixes(block, lanes):
            block = -(-block // 2)  # memory-mapped: no chunk would be decoded twice
        why = "the storage's chunking" if block == natural else "several per window fit the budget"
        return ExplainedValue(block, why)

    def _is_small(self, block: int) -> bool:
        source = self.demand.source
        return source.is_cut and source.cost(block).own_bytes < FEW_BYTES

    def _larger(self) -> list[int]:
        """Return larger blocks, ascending."""
        firsts = self.natural, self.demand.source.whole_rows
        sizes = {first << i for first in firsts for i in range(32)}
        return sorted(size for size in sizes if size > self.natural)

    def decoded_per_byte(self, block: int) -> float:
        """Return the bytes that are decoded per byte of the rows that a block adds."""
        cost = self.demand.source.cost(block)
        return cost.decoded_bytes / max(1, cost.own_bytes)

    def _mixes(self, block: int, lanes: int) -> bool:
        """Return whether a window can mix several blocks of this size, or all there are."""
        enough = min(MIXED_BLOCKS, max(1, self.samples // block // lanes))
        return self._largest(block, lanes) >= enough

    def _window(self, block: int, lanes: int) -> ExplainedValue:
        largest = max(1, self._largest(block, lanes))
        if self.in_order:
            busy = self.demand.threads + -(-self.demand.whole // block)
            return ExplainedValue(min(largest, busy), "enough to keep the readers busy")
        blocks_of_all = max(1, self.samples // min(block, self.samples) // lanes)
        most = MIXED_NARROW * (self.demand.whole // self.demand.batch) // (block * lanes)
        narrow = self.demand.source.sample_bytes + self.demand.extra_bytes < NARROW_BYTES
        if narrow and most < min(largest, blocks_of_all):
            return ExplainedValue(max(1, most), "enough for a shuffle of samples this small")
        everything = largest >= self.samples // min(block, self.samples) // lanes
        return ExplainedValue(largest, "all there is" if everything else "the budget")

    def _largest(self, block: int, lanes: int) -> int:
        return self.demand.largest_window(
            self.budget, size=self.samples, block=min(block, self.samples), lanes=lanes
        )


def _halves(number: int) -> Iterator[int]:
    """Yield half of a number, half of that, and so on down to 1."""
    while number > 1:
        number //= 2
        yield number
