"""How storage is read: blocks, windows and lanes, each with its reason. Arithmetic."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.order import BlockOrder
from penstock.sizes import format_bytes, parse_bytes, size_text
from penstock.streaming.budget import Demand

log = logging.getLogger("penstock")

REREAD_CHUNKS = 4  # a block is so many times what rollouts read once more, if the budget allows
MIXED_BLOCKS = 8  # in a window at least, before larger blocks are thought of
NARROW_BYTES = 64  # of a sample, below which it takes longer to shuffle than to read
MIXED_NARROW = 1 << 24  # narrow samples in a window at most: the first batch waits for all of them
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
            if value is not None:
                whole_number(ARGUMENTS[field.name], value, minimum=1)


class Choice(NamedTuple):
    """A number and its reason."""

    value: int
    why: str


class Resolved(NamedTuple):
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

    def round_samples(self, resolved: Resolved) -> int:
        """Samples of a round of windows, over all lanes."""
        block, window, lanes = (choice.value for choice in resolved)
        if self.in_order:
            return min(block * window, self.samples)
        return BlockOrder(self.samples, 0, block, window, lanes).window_samples * lanes

    def needed(self, resolved: Resolved) -> int:
        """Bytes of everything that is held for a geometry."""
        block = min(resolved.block.value, self.samples)
        return self.demand.nbytes(block=block, round_samples=self.round_samples(resolved))

    def check(self, asked: Geometry, adopted: Geometry, *, ranks: int) -> Resolved:
        """What `resolve` gives; refused where it does not fit the budget, with what would."""
        resolved = self.resolve(asked, adopted, ranks=ranks)
        needed = self.needed(resolved)
        if needed <= self.budget:
            return resolved
        block, samples = min(resolved.block.value, self.samples), self.round_samples(resolved)
        if adopted != Geometry() and self.demand.buffers(block, samples) <= self.budget:
            log.warning(
                "this geometry holds %s, memory_budget is %s: it is of a state that was taken when "
                "bookkeeping was not counted",
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
        """Arguments that would fit, each by itself: a budget, smaller windows, blocks, batches."""

        def needs(resolver: Resolver, asked: Geometry) -> int:
            return resolver.needed(resolver.resolve(asked, adopted, ranks=ranks))

        def fits(resolver: Resolver, asked: Geometry) -> bool:
            return needs(resolver, asked) <= self.budget

        while (more := needs(replace(self, budget=parse_bytes(size_text(needed))), asked)) > needed:
            needed = more  # a larger budget allows larger blocks, which the window is made of
        advice = [f'memory_budget="{size_text(needed)}"']
        if adopted.window is None and asked.window is not None:
            for window in _halves(asked.window):
                if fits(self, replace(asked, window=window)):
                    return [*advice, f"window_blocks={window}"]
        if adopted.block is None:
            for block in _halves(min(found.block.value, self.samples)):
                if fits(self, replace(asked, block=block)):
                    return [*advice, f"block_samples={block}"]
        for batch in _halves(self.demand.batch):
            demand = replace(self.demand, batch=batch, whole=batch * ranks)
            if fits(replace(self, demand=demand), asked):
                return [*advice, f"batch_size={batch}"]
        return advice

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
        blocks_of_all = max(1, self.samples // min(block, self.samples) // lanes)
        most = MIXED_NARROW * (self.demand.whole // self.demand.batch) // (block * lanes)
        if self.demand.sample_bytes < NARROW_BYTES and most < min(largest, blocks_of_all):
            return Choice(max(1, most), "enough for a shuffle of samples this small")
        everything = largest >= self.samples // min(block, self.samples) // lanes
        return Choice(largest, "all there is" if everything else "the budget")

    def _largest(self, block: int, lanes: int) -> int:
        return self.demand.largest_window(
            self.budget, size=self.samples, block=min(block, self.samples), lanes=lanes
        )


def _halves(number: int) -> Iterator[int]:
    """Half of a number, half of that, and so on to 1."""
    while number > 1:
        number //= 2
        yield number
