"""Which spans of a recording an epoch loads, from (seed, epoch) alone."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import PlanError
from penstock.order import derive_key, tiles

SAMPLINGS = ("cover", "uniform")


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Spans of ``range(total)``, chunk by chunk, epoch by epoch.

    ``cover``: every pass tiles the recording once, in chunks of equal length (but for one unit of
    ``align``), shuffled. ``uniform``: independent random starts, as the seed's users
    know it; on average a third of the recording is missed.

    >>> plan = ChunkPlan(total=10, chunk=4, seed=7)
    >>> sorted(plan.spans(epoch=0, count=3))
    [(0, 4), (4, 7), (7, 10)]
    """

    total: int
    chunk: int
    seed: int
    sampling: str = "cover"
    align: int = 1
    overlap: int = 0

    def __post_init__(self) -> None:
        for name, value in (("total_timesteps", self.total), ("chunk_size", self.chunk)):
            if value < 1:
                raise PlanError(f"{name} must be at least 1 timestep, got {value!r}")
        if self.align < 1 or self.overlap < 0:
            raise PlanError(
                f"align must be at least 1 and overlap not negative, got "
                f"align={self.align!r}, overlap={self.overlap!r}"
            )
        if self.sampling not in SAMPLINGS:
            raise PlanError(f"sampling must be one of {SAMPLINGS}, got {self.sampling!r}")
        if self.chunk % self.align:
            below = max(1, self.chunk // self.align) * self.align
            raise PlanError(
                f"chunk_size {self.chunk:,} is not a multiple of align {self.align:,}: "
                f"use chunk_size={below} or {below + self.align}"
            )

    @property
    def per_pass(self) -> int:
        """Chunks that cover the recording once."""
        return -(-self.total // self.chunk)

    @property
    def longest(self) -> int:
        """Timesteps of the longest chunk."""
        return min(self.total, self.chunk + self.overlap)

    def spans(self, epoch: int, count: int) -> list[tuple[int, int]]:
        """The first ``count`` chunks of an epoch; beyond one pass, of further passes."""
        if count < 1:
            raise PlanError(f"num_chunks must be at least 1, got {count!r}")
        if self.sampling == "uniform":
            return [self._uniform(epoch, i) for i in range(count)]
        passes = range(-(-count // self.per_pass))
        return [span for number in passes for span in self._cover(epoch, number)][:count]

    def _cover(self, epoch: int, number: int) -> list[tuple[int, int]]:
        key = derive_key(self.seed, "tiles", epoch, number)
        spans = tiles(self.total, self.chunk, key, self.align)
        return [(start, min(stop + self.overlap, self.total)) for start, stop in spans]

    def _uniform(self, epoch: int, i: int) -> tuple[int, int]:
        starts = max(0, self.total - self.chunk) // self.align + 1
        start = derive_key(self.seed, "uniform", epoch, i) % starts * self.align
        return start, min(start + self.chunk + self.overlap, self.total)
