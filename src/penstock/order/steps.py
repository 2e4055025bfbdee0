"""Steps: which positions make a step, and which of them are a rank's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.arguments import flag, whole_number
from penstock.errors import PlanError
from penstock.order.permutation import Indices


@dataclass(frozen=True, slots=True)
class Topology:
    """Which of ``world`` equal ranks this is.

    >>> Topology(rank=1, world=4)
    Topology(rank=1, world=4)
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        world = whole_number("world_size", self.world, minimum=1)
        rank = whole_number("rank", self.rank, minimum=0)
        if rank >= world:
            raise PlanError(f"rank must be in [0, {world}), got {rank!r}")
        object.__setattr__(self, "rank", rank)  # int: positions of states are made of these
        object.__setattr__(self, "world", world)


@dataclass(frozen=True, slots=True)
class Steps:
    """Cuts an order's positions into steps and chunks, and a step into what each rank gets.

    A step is ``[p, stop(p))``: ``batch * world`` positions, but at the end of an epoch:

    - ``drop_last``: nothing is left when fewer than a whole step remain;
    - otherwise the last step has the rest, and where the rest is smaller than the world, the
      step before leaves enough that every rank gets one sample. (Only a resume on more ranks
      than samples are left in the epoch gives some up, fewer than ``world``.)

    Within a step positions are sorted by (lane, position); rank r gets the r-th equal part. So
    the ranks' batches, joined, are one sequence for every world with this ``batch * world``; and
    where world divides lanes and lanes divide the step, a rank keeps to its own lanes.

    Args:
        size: Samples of the order.
        batch: Samples of a rank's batch.
        limit: Batches an epoch, the first ones; None for all.
        chunk: Batches a chunk; None for the whole epoch.

    >>> steps = Steps(size=10, batch=2, world=2, drop_last=False)
    >>> steps.count, steps.rank_positions(4, rank=1)
    (3, array([6, 7]))
    """

    size: int
    batch: int
    world: int = 1
    lanes: int = 1
    drop_last: bool = True
    limit: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        for name, value, unit in (
            ("size", self.size, "sample"),
            ("batch_size", self.batch, "sample"),
            ("world_size", self.world, "rank"),
            ("lanes", self.lanes, "lane"),
            ("chunk_size", 1 if self.chunk is None else self.chunk, "batch"),
        ):
            whole_number(name, value, minimum=1, unit=unit)
        if self.limit is not None:
            whole_number("limit_batches", self.limit, minimum=0)
        flag("drop_last", self.drop_last)
        self._refuse_what_cannot_be()

    def _refuse_what_cannot_be(self) -> None:
        n, world = self.size, self.world
        if self.drop_last and n < self.whole:
            raise PlanError(
                f"{n} samples make no step of {self.whole} (batch_size {self.batch} x {world} "
                "ranks): use a smaller batch size, or drop_last=False"
            )
        if not self.drop_last and n < world:
            raise PlanError(
                f"{n} samples for {world} ranks: some rank would get none; use fewer ranks"
            )
        if not self.drop_last and self.batch == 1 and n % world:
            raise PlanError(
                f"batches of 1 cannot split {n} samples evenly over {world} ranks: "
                "use a batch size of 2 or more, or drop_last=True"
            )

    @property
    def whole(self) -> int:
        """Positions of a whole step."""
        return self.batch * self.world

    @property
    def count(self) -> int:
        """Steps of an epoch."""
        return self.steps_from(0)

    def stop(self, p: int) -> int:
        """Where the step that begins at ``p`` ends; ``p`` itself when the epoch is over."""
        rest = self.size - p
        if self.limit is not None and self.step_of(p) >= self.limit:
            return p
        if rest < (self.whole if self.drop_last else self.world):
            return p
        spread = not self.drop_last and self.batch > 1
        if spread and self.whole < rest < self.whole + self.world:
            return self.size - self.world  # else the next step would leave some rank empty
        return p + min(rest, self.whole)

    def steps_from(self, p: int) -> int:
        """Steps left in the epoch at ``p``."""
        n, rest = divmod(self.size - p, self.whole)
        if not self.drop_last and (rest >= self.world or (rest and n and self.batch > 1)):
            n += 1
        return n if self.limit is None else max(0, min(n, self.limit - self.step_of(p)))

    def start(self, step: int) -> int:
        """Where step number ``step`` of an epoch begins."""
        return self.span(step)[0]

    def span(self, step: int, origin: int = 0) -> tuple[int, int]:
        """Where a step begins and ends, of the steps counted from ``origin``.

        An epoch that is resumed at ``origin`` with another size of step is read in steps from
        there on. The step there has number `step_of` ``(origin)``; before it the same steps are
        counted backwards, so that the first one may be short.

        >>> [Steps(size=20, batch=6, drop_last=False).span(step, 8) for step in range(4)]
        [(0, 2), (2, 8), (8, 14), (14, 20)]
        """
        first = self.step_of(origin)
        count = first + self.steps_from(origin)
        if not 0 <= step < count:
            raise IndexError(f"step must be in [0, {count}), got {step!r}")
        begin = origin + (step - first) * self.whole
        if step < first:
            return max(0, begin), begin + self.whole
        if step > first and 0 < self.size - begin < self.world and not self.drop_last:
            begin = self.size - self.world  # the step before left enough for every rank
        return begin, self.stop(begin)

    def step_of(self, p: int) -> int:
        """Number of the step at ``p``."""
        return -(-p // self.whole)

    # -- chunks

    @property
    def total_chunks(self) -> int:
        """Chunks of an epoch; the last may be short."""
        return 1 if self.chunk is None else -(-self.count // self.chunk)

    def chunk_of(self, p: int) -> int:
        """Number of the chunk ``p`` is in."""
        return 0 if self.chunk is None else self.step_of(p) // self.chunk

    def left_in_chunk(self, p: int) -> int:
        """Batches from ``p`` to the end of its chunk."""
        left = self.steps_from(p)
        return left if self.chunk is None else min(left, self.chunk - self.step_of(p) % self.chunk)

    def chunk_length(self, p: int) -> int:
        """Batches of the chunk ``p`` is in, the same all through it.

        A trainer that resumes in its middle counts the batches done before by itself.
        """
        done = self.step_of(p) if self.chunk is None else self.step_of(p) % self.chunk
        return done + self.left_in_chunk(p)

    # -- ranks

    def rank_positions(self, p: int, rank: int, stop: int | None = None) -> Indices:
        """Positions of a rank's batch in the step at ``p``, in delivery order: O(batch)."""
        m = (self.stop(p) if stop is None else stop) - p
        t = np.arange(rank * m // self.world, (rank + 1) * m // self.world, dtype=np.int64)
        if self.lanes == 1:
            return t + p
        q, h = divmod(m, self.lanes)  # h lanes, from p % lanes on, have q + 1 positions
        s = p % self.lanes
        wrap = max(0, s + h - self.lanes)  # so many of them are the first lanes
        runs = ((wrap, q + 1), (s - wrap, q), (h - wrap, q + 1), (self.lanes - s - h + wrap, q))
        lane, place = np.zeros_like(t), np.zeros_like(t)
        begin = lane_begin = 0
        for lanes, each in runs:
            if each:
                here = (t >= begin) & (t < begin + lanes * each)
                lane[here] = lane_begin + (t[here] - begin) // each
                place[here] = (t[here] - begin) % each
            begin, lane_begin = begin + lanes * each, lane_begin + lanes
        return p + (lane - p) % self.lanes + place * self.lanes

    def places(self, p: int | Indices, positions: Indices, stop: int | Indices) -> Indices:
        """Place of each position in its step ``[p, stop)``, counted over all ranks: the inverse.

        Rank r has the places ``r * m // world`` to ``(r + 1) * m // world`` of the step's m.
        """
        if self.lanes == 1:
            return positions - p
        q, h = np.divmod(stop - p, self.lanes)  # as in `rank_positions`
        s = p % self.lanes
        wrap = np.maximum(0, s + h - self.lanes)
        lane: Indices = positions % self.lanes
        longer: Indices = np.clip(lane - s, 0, h - wrap)  # lanes before it that have q + 1
        longer += np.minimum(lane, wrap)
        return lane * q + longer + (positions - p) // self.lanes

    def lanes_of(self, rank: int) -> range:
        """Lanes a rank reads where lanes divide the step (else one more on either side)."""
        return range(rank * self.lanes // self.world, -(-(rank + 1) * self.lanes // self.world))
