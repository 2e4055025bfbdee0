"""How storage is read: blocks, windows and lanes, each with its reason. Arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from penstock.errors import PlanError
from penstock.streaming.budget import Demand, format_bytes

REREAD_CHUNKS = 4  # a block is so many times what rollouts read once more, if the budget allows
MIXED_BLOCKS = 8  # in a window at least, before larger blocks are thought of
ARGUMENTS = {"block": "block_samples", "window": "window_blocks", "lanes": "lanes"}


@dataclass(frozen=True, slots=True)
class Geometry:
    """What was asked for, or adopted from a state; None where neither."""

    block: int | None = None
    window: int | None = None
    lanes: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                said = ARGUMENTS[field.name]
                raise PlanError(f"{said} must be a whole number of at least 1, got {value!r}")


class Choice(NamedTuple):
    """A number and its reason."""

    value: int
    why: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The geometry of a stream, and why."""

    block: Choice
    window: Choice
    lanes: Choice


@dataclass(frozen=True, slots=True)
class Resolver:
    """Picks blocks, windows and lanes within a budget.

    Args:
        samples: Samples of the dataset.
        natural: Samples of a chunk of the storage.
        budget: Bytes of all buffers together.
        in_order: Not shuffled: windows only need to keep the readers busy.
    """

    demand: Demand
    samples: int
    natural: int
    budget: int
    in_order: bool

    def resolve(self, asked: Geometry, adopted: Geometry, *, ranks: int) -> Resolved:
        """What was asked for; else what a state had; else what storage and budget suggest."""
        lanes = self._given(asked.lanes, adopted.lanes) or Choice(ranks, "one a rank")
        if self.in_order:
            lanes = Choice(1, "in order")
        block = self._given(asked.block, adopted.block) or self._block(lanes.value)
        window = self._given(asked.window, adopted.window) or self._window(block.value, lanes.value)
        return Resolved(block, window, lanes)

    def check(self, resolved: Resolved, round_samples: int) -> None:
        """Refuse what does not fit the budget, and say what would."""
        block = min(resolved.block.value, self.samples)
        needed = self.demand.nbytes(block=block, round_samples=round_samples)
        if needed > self.budget:
            raise PlanError(
                f"windows of {resolved.window.value:,} blocks of {resolved.block.value:,} samples "
                f"need {format_bytes(needed)} ({needed:,} bytes) of buffers, memory_budget is "
                f"{format_bytes(self.budget)}: raise it, or use smaller windows, blocks or batches"
            )

    def _given(self, asked: int | None, adopted: int | None) -> Choice | None:
        if asked is not None:
            return Choice(asked, "given")
        return None if adopted is None else Choice(adopted, "adopted from a state")

    def _block(self, lanes: int) -> Choice:
        """The storage's own chunking; for rollouts so many chunks that little is read twice."""
        natural = min(self.natural, self.samples)
        again = -(-(self.demand.steps - 1) // natural)  # chunks beyond its own that it touches
        for chunks in (again * REREAD_CHUNKS, again * REREAD_CHUNKS // 2, again):
            block = chunks * natural
            if 1 < chunks <= self.samples // natural and self._mixes(block, lanes):
                return Choice(block, f"{chunks} storage chunks, to read less of them twice")
        if self.demand.chunk_rows or self._mixes(natural, lanes):
            return Choice(natural, "the storage's chunking")
        while natural > 1 and not self._mixes(natural, lanes):
            natural = -(-natural // 2)  # looked at in place: no chunk is decoded in vain
        return Choice(natural, "so that the budget allows several a window")

    def _mixes(self, block: int, lanes: int) -> bool:
        """May a window have several blocks of that size, or all that there are?"""
        enough = min(MIXED_BLOCKS, max(1, self.samples // block // lanes))
        return self._largest(block, lanes) >= enough

    def _window(self, block: int, lanes: int) -> Choice:
        largest = max(1, self._largest(block, lanes))
        if self.in_order:
            busy = self.demand.threads + -(-self.demand.whole // block)
            return Choice(min(largest, busy), "enough to keep the readers busy")
        everything = largest >= self.samples // min(block, self.samples) // lanes
        return Choice(largest, "all there is" if everything else "the budget")

    def _largest(self, block: int, lanes: int) -> int:
        return self.demand.largest_window(
            self.budget, size=self.samples, block=min(block, self.samples), lanes=lanes
        )
