"""Chunk sizes that change: they grow, come in stages, or follow a duration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, TypeAlias

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.loaders.options import check_chunk_size
from penstock.ranks import has_several_ranks, text_of_rank_zero

# what users pass as chunk_size: a number, a duration, sizes that grow, or stages
ChunkSize: TypeAlias = int | str | Mapping[str, int] | list[list[int]]

FIRST_BATCHES: Final = 50  # of a chunk with a duration, before the time of a batch is known
_SECONDS: Final = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class GrowingChunks:
    """Chunks of ``start`` batches at first, of ``end`` batches after ``over_chunks`` chunks.

    Args:
        start: Batches of the first chunk.
        end: Batches of chunk number ``over_chunks``, counted from 0, and of all after it.
        over_chunks: Chunks until then; sizes in between are interpolated linearly.

    >>> [GrowingChunks(10, 40, over_chunks=3).size(k, None) for k in range(5)]
    [10, 20, 30, 40, 40]
    """

    start: int
    end: int
    over_chunks: int

    def __post_init__(self) -> None:
        for name in ("start", "end", "over_chunks"):
            whole_number(name, getattr(self, name), minimum=1)

    def size(self, chunks: int, seconds: float | None) -> int:
        """Return the batches of the chunk after ``chunks`` others."""
        done = min(chunks, self.over_chunks)
        return self.start + (self.end - self.start) * done // self.over_chunks

    def __str__(self) -> str:
        return f"{self.start:,} to {self.end:,} batches over {self.over_chunks:,} chunks"


@dataclass(frozen=True, slots=True)
class StagedChunks:
    """Chunks whose size changes at given chunks.

    Args:
        stages: Each ``(first chunk, batches)``; the first one is chunk 0.

    >>> [StagedChunks(((0, 10), (2, 40))).size(k, None) for k in range(4)]
    [10, 10, 40, 40]
    """

    stages: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        firsts = [whole_number("a chunk", first, minimum=0) for first, _ in self.stages]
        for _, batches in self.stages:
            whole_number("chunk_size", batches, minimum=1, unit="batch")
        if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)):
            raise PlanError(
                "stages of chunk sizes are [first chunk, batches], from chunk 0 on and ascending, "
                f"got {[list(stage) for stage in self.stages]}"
            )

    def size(self, chunks: int, seconds: float | None) -> int:
        """Return the batches of the chunk after ``chunks`` others."""
        return next(batches for first, batches in reversed(self.stages) if first <= chunks)

    def __str__(self) -> str:
        parts = (f"{batches:,} batches from chunk {first:,} on" for first, batches in self.stages)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class TimedChunks:
    """Chunks of about a given duration, from the time per batch of the previous chunk.

    All ranks use the decision of rank 0, which is in the state.

    Args:
        seconds: The duration.
        clock: Returns the time in seconds.

    >>> TimedChunks(600).size(3, seconds=0.5)
    1200
    """

    seconds: float
    clock: Callable[[], float] = field(default=perf_counter, compare=False, repr=False)

    def size(self, chunks: int, seconds: float | None) -> int:
        """Return the batches of the next chunk, if a batch takes ``seconds``."""
        return (
            FIRST_BATCHES if seconds is None else max(1, round(self.seconds / max(seconds, 1e-9)))
        )

    def __str__(self) -> str:
        return f"about {self.seconds:,g} s each"


ChunkSchedule: TypeAlias = GrowingChunks | StagedChunks | TimedChunks


def chunk_schedule(value: Any, name: str = "chunk_size") -> int | ChunkSchedule | None:
    """Return a chunk size, or a schedule of them.

    Args:
        value: Batches; ``{"start", "end", "over_chunks"}``; ``[[first chunk, batches], ...]``; a
            duration such as ``"10min"``; a schedule; or None.
        name: The argument's name, for messages.

    >>> chunk_schedule("10min"), chunk_schedule([[0, 5], [9, 50]]), chunk_schedule(20)
    (TimedChunks(seconds=600.0), StagedChunks(stages=((0, 5), (9, 50))), 20)
    """
    if value is None or isinstance(value, ChunkSchedule):
        return value
    if isinstance(value, Mapping) and {*value} == {"start", "end", "over_chunks"}:
        return GrowingChunks(**value)
    pairs = isinstance(value, list | tuple) and all(
        isinstance(stage, list | tuple) and len(stage) == 2 for stage in value
    )
    if pairs and value:
        return StagedChunks(tuple((first, batches) for first, batches in value))
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", value)
        if found and found[2] in _SECONDS and float(found[1]) > 0:
            return TimedChunks(float(found[1]) * _SECONDS[found[2]])
    if isinstance(value, Mapping | list | tuple | str):
        raise PlanError(
            f"{name} must be a number of batches, {{start, end, over_chunks}}, a list of "
            f"[first chunk, batches], or a duration such as '10min', got {value!r}"
        )
    return check_chunk_size(value, name)


class ChunkProgress:
    """The chunk that training is in, where chunks differ in size.

    Args:
        schedule: The sizes.

    >>> progress = ChunkProgress(GrowingChunks(1, 3, over_chunks=2))
    >>> progress.count(world=1, ended=False)
    >>> progress.to_state()
    {'chunks': 1, 'chunk_size': 2, 'chunk_done': 0}
    """

    def __init__(self, schedule: ChunkSchedule) -> None:
        self.schedule = schedule
        self.chunks = 0  # completed ones
        self.done = 0  # batches of the current one
        self.size = schedule.size(0, None)
        self._first: tuple[float, int] | None = None  # when the first batch came, and its number

    def begin(self, done: int) -> None:
        """Note that an iteration begins, with ``done`` batches of the chunk delivered before."""
        self.done, self._first = done, None

    def count(self, *, world: int, ended: bool) -> None:
        """Count a batch; decide on the next chunk after the last one of this chunk.

        Args:
            world: Number of ranks.
            ended: Whether it was the last batch of its epoch, which ends a chunk, too.
        """
        self.done += 1
        seconds = None
        if isinstance(self.schedule, TimedChunks):
            now = self.schedule.clock()
            self._first = self._first or (now, self.done)
            if self.done > self._first[1]:
                seconds = (now - self._first[0]) / (self.done - self._first[1])
        if self.done < self.size and not ended:
            return
        self.chunks, self.done, self._first = self.chunks + 1, 0, None
        if not isinstance(self.schedule, TimedChunks):
            self.size = self.schedule.size(self.chunks, None)
        elif seconds is not None:  # otherwise, it was too short to measure, on every rank
            self.size = _of_rank_zero(self.schedule.size(self.chunks, seconds), world)

    def to_state(self) -> dict[str, int]:
        """Return its entries in a state, which include what was decided by a clock."""
        return {"chunks": self.chunks, "chunk_size": self.size, "chunk_done": self.done}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue in the chunk of a state; one without a chunk begins with the first size."""
        if state.get("chunk_size") is None:
            self.__init__(self.schedule)  # type: ignore[misc]
            return
        self.chunks, self.size = state["chunks"], state["chunk_size"]
        self.done = state["chunk_done"]


def _of_rank_zero(mine: int, world: int) -> int:
    """Return the decision of rank 0; all ranks call this at the same steps."""
    if world == 1:
        return mine
    if not has_several_ranks():
        raise PlanError(
            f"a chunk size by duration with world_size={world} and no process group: each rank "
            "would decide by its own clock; pass a number of batches"
        )
    return int(text_of_rank_zero(str(mine)))
