"""Which spans of a recording an epoch loads, from (seed, epoch) alone."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.arguments import choice, whole_number
from penstock.errors import PlanError
from penstock.order import Topology, derive_key, tiles

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
        for field, name, smallest, unit in (
            ("total", "total_timesteps", 1, "timestep"),
            ("chunk", "chunk_size", 1, "timestep"),
            ("align", "align", 1, "timestep"),
            ("overlap", "overlap", 0, "timestep"),
        ):
            value = whole_number(name, getattr(self, field), minimum=smallest, unit=unit)
            object.__setattr__(self, field, value)
        seed = whole_number("seed", self.seed, minimum=0, maximum=2**64 - 1)
        object.__setattr__(self, "seed", seed)
        choice("sampling", self.sampling, SAMPLINGS)
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
        if self.sampling == "uniform":
            return [self._uniform(epoch, i) for i in range(count)]
        passes = range(-(-count // self.per_pass))
        return [span for number in passes for span in self._cover(epoch, number)][:count]

    def share(
        self, epoch: int, first: int, count: int, topology: Topology
    ) -> list[tuple[int, int]]:
        """A rank's part of the chunks ``first : count`` of an epoch, dealt to the ranks in turn.

        All ranks get equally many, so that none waits for another: what remains, fewer chunks
        than ranks, is dropped.

        >>> plan, ranks = ChunkPlan(total=10, chunk=2, seed=7), [Topology(r, 2) for r in (0, 1)]
        >>> a, b = (plan.share(epoch=0, first=0, count=5, topology=each) for each in ranks)
        >>> [*zip(a, b)] == [*zip(plan.spans(0, 4)[::2], plan.spans(0, 4)[1::2])]
        True
        """
        stop = count - max(0, count - first) % topology.world
        return self.spans(epoch, count)[first + topology.rank : stop : topology.world]

    def _cover(self, epoch: int, number: int) -> list[tuple[int, int]]:
        key = derive_key(self.seed, "tiles", epoch, number)
        spans = tiles(self.total, self.chunk, key, self.align)
        return [(start, min(stop + self.overlap, self.total)) for start, stop in spans]

    def _uniform(self, epoch: int, i: int) -> tuple[int, int]:
        starts = max(0, self.total - self.chunk) // self.align + 1
        start = derive_key(self.seed, "uniform", epoch, i) % starts * self.align
        return start, min(start + self.chunk + self.overlap, self.total)
