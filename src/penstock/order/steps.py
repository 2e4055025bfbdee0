"""Steps: which positions make up a step, which of them each rank gets, and where training is."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.arguments import flag, whole_number
from penstock.errors import PlanError
from penstock.order.permutation import Indices

if TYPE_CHECKING:
    from penstock.order.orders import Order
    from penstock.order.plan import Skips

MOST_EMPTY: Final = 10_000  # epochs in a row without a step: then something is wrong


@dataclass(frozen=True, slots=True)
class Topology:
    """The rank of this process among ``world`` equal ranks.

    Args:
        rank: From 0 to ``world - 1``.
        world: Number of ranks that share the data.

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
        object.__setattr__(self, "rank", rank)  # a plain int: positions in states derive from it
        object.__setattr__(self, "world", world)


@dataclass(frozen=True, slots=True)
class Steps:
    """The division of an order's positions into steps and chunks, and of a step into ranks.

    A step is ``[p, stop(p))``: ``batch * world`` positions, except at the end of an epoch:

    - with ``drop_last``, the epoch ends when less than a whole step remains;
    - otherwise the last step has the rest. If the rest is smaller than the world, the step before
      it is shortened so that every rank gets at least one sample. (Samples are dropped only when
      an epoch is resumed with more ranks than samples left: fewer than ``world``.)

    Within a step, positions are sorted by (lane, position) and rank r gets the r-th equal part.
    Therefore the concatenated batches of all ranks are the same sequence for every world with this
    ``batch * world``. Where world divides lanes and lanes divide the step, a rank reads only its
    own lanes.

    Args:
        size: Samples of the order.
        batch: Samples of a rank's batch.
        world: Number of ranks.
        lanes: Lanes of the order.
        drop_last: Whether an incomplete last step is left out.
        limit: Batches per epoch, from its start; None for all.
        chunk: Batches per chunk; None for the whole epoch.
        sizes: Returns the positions of an epoch, where epochs differ; None if all have ``size``.
            These steps then describe an epoch of ``size`` positions; `of` returns those of others.

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
    sizes: Callable[[int], int] | None = None

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
        self._check_sizes()

    def _check_sizes(self) -> None:
        n, world = self.size, self.world
        if self.drop_last and n < self.whole:
            raise PlanError(
                f"{n} samples do not fill a step of {self.whole} (batch_size {self.batch} x "
                f"{world} ranks): use a smaller batch size, or drop_last=False"
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

    def of(self, epoch: int) -> Steps:
        """Return the steps of an epoch; there are none where too few positions are left."""
        size = self.size if self.sizes is None else self.sizes(epoch)
        if size == self.size:
            return self
        steps = copy(self)  # not checked again: this epoch alone may have too little for a step
        object.__setattr__(steps, "size", size)
        return steps

    def skipping(self, skips: Skips, order: Order) -> Steps:
        """Return the steps of the positions of an order that are kept."""
        return replace(self, sizes=skips.sizes(order))

    @property
    def is_constant(self) -> bool:
        """Whether every epoch has the same number of steps."""
        return self.sizes is None

    @property
    def whole(self) -> int:
        """Positions in a whole step."""
        return self.batch * self.world

    @property
    def count(self) -> int:
        """Steps per epoch."""
        return self.steps_from(0)

    def stop(self, p: int) -> int:
        """Return the end of the step that begins at ``p``; ``p`` itself when the epoch is over."""
        rest = self.size - p
        if self.limit is not None and self.step_of(p) >= self.limit:
            return p
        if rest < (self.whole if self.drop_last else self.world):
            return p
        spread = not self.drop_last and self.batch > 1
        if spread and self.whole < rest < self.whole + self.world:
            return self.size - self.world  # or some rank would get nothing in the next step
        return p + min(rest, self.whole)

    def steps_from(self, p: int) -> int:
        """Return the number of steps left in the epoch at ``p``."""
        n, rest = divmod(self.size - p, self.whole)
        if not self.drop_last and (rest >= self.world or (rest and n and self.batch > 1)):
            n += 1
        return n if self.limit is None else max(0, min(n, self.limit - self.step_of(p)))

    def start(self, step: int) -> int:
        """Return the position at which step number ``step`` of an epoch begins."""
        return self.span(step)[0]

    def span(self, step: int, origin: int = 0) -> tuple[int, int]:
        """Return the begin and end of a step, of the steps counted from ``origin``.

        An epoch that is resumed at ``origin`` with another step size is cut into steps from there.
        The step at ``origin`` has number ``step_of(origin)``. Steps before it are counted
        backwards, so that the first one may be short.

        Args:
            step: Number of the step in the epoch.
            origin: A position at which a step begins.

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
            begin = self.size - self.world  # the step before it was shortened
        return begin, self.stop(begin)

    def locate(self, p: int, origin: int = 0) -> tuple[int, int, int] | None:
        """Return the step, rank and row of position ``p``; None if it is dropped.

        The inverse of `span` and `rank_positions`.

        Args:
            p: A position of the epoch.
            origin: A position at which a step begins: steps are counted as in `span`.

        >>> Steps(size=10, batch=2, world=2, drop_last=False).locate(7)
        (1, 1, 1)
        """
        first = self.step_of(origin)
        count = first + self.steps_from(origin)
        step = first + (p - origin) // self.whole
        if p >= origin and count > first and step >= count - 2:  # these need not be whole
            step = count - 1 if p >= self.span(count - 1, origin)[0] else count - 2
        if not 0 <= step < count:
            return None
        begin, stop = self.span(step, origin)
        if p >= stop:
            return None
        m = stop - begin
        t = int(self.indices_in_step(begin, np.array([p]), stop)[0])
        rank = ((t + 1) * self.world - 1) // m
        return step, rank, t - rank * m // self.world

    def step_of(self, p: int, origin: int = 0) -> int:
        """Return the number of the step at ``p``, of the steps counted from ``origin``."""
        return -(-origin // self.whole) - (origin - p) // self.whole

    # -- chunks

    @property
    def total_chunks(self) -> int:
        """Chunks per epoch; the last may be short."""
        return 1 if self.chunk is None else -(-self.count // self.chunk)

    def chunk_of(self, p: int) -> int:
        """Return the number of the chunk that contains ``p``."""
        return 0 if self.chunk is None else self.step_of(p) // self.chunk

    def left_in_chunk(self, p: int, origin: int = 0) -> int:
        """Return the number of batches from ``p`` to the end of its chunk."""
        left, step = self.steps_from(p), self.step_of(p, origin)
        return left if self.chunk is None else min(left, self.chunk - step % self.chunk)

    def chunk_length(self, p: int, origin: int = 0) -> int:
        """Return the number of batches of the chunk that contains ``p``, done or not.

        A trainer that resumes in the middle of a chunk adds the batches done before by itself.

        Args:
            p: A position at which a step begins.
            origin: The position that steps are counted from, as for `span`.
        """
        step = self.step_of(p, origin)
        done = step if self.chunk is None else step % self.chunk
        return done + self.left_in_chunk(p, origin)

    # -- ranks

    def rank_positions(self, p: int, rank: int, stop: int | None = None) -> Indices:
        """Return the positions of a rank's batch in the step at ``p``, in delivery order."""
        m = (self.stop(p) if stop is None else stop) - p
        t = np.arange(rank * m // self.world, (rank + 1) * m // self.world, dtype=np.int64)
        if self.lanes == 1:
            return t + p
        q, h = divmod(m, self.lanes)  # h lanes, from p % lanes on, have q + 1 positions
        s = p % self.lanes
        wrap = max(0, s + h - self.lanes)  # how many of them wrap around to the first lanes
        runs = ((wrap, q + 1), (s - wrap, q), (h - wrap, q + 1), (self.lanes - s - h + wrap, q))
        lane, row = np.zeros_like(t), np.zeros_like(t)
        begin = lane_begin = 0
        for lanes, each in runs:
            if each:
                here = (t >= begin) & (t < begin + lanes * each)
                lane[here] = lane_begin + (t[here] - begin) // each
                row[here] = (t[here] - begin) % each
            begin, lane_begin = begin + lanes * each, lane_begin + lanes
        return p + (lane - p) % self.lanes + row * self.lanes

    def indices_in_step(self, p: int | Indices, positions: Indices, stop: int | Indices) -> Indices:
        """Return the index of each position in its step ``[p, stop)``, counted over all ranks.

        The inverse of `rank_positions`: of the m positions of a step, rank r has the indices
        ``r * m // world`` to ``(r + 1) * m // world``.
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

    places = indices_in_step  # its name in the specification

    def lanes_of(self, rank: int) -> range:
        """Return the lanes that a rank reads.

        Exact where lanes divide the step; otherwise the rank also reads one more on either side.
        """
        return range(rank * self.lanes // self.world, -(-(rank + 1) * self.lanes // self.world))


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The position of the next step, counted over all ranks: the whole state of an order.

    A normalised cursor has at least one step left at ``position``: the end of an epoch is the start
    of the next one.

    Args:
        epoch: Number of the epoch.
        position: Position in the epoch at which the next step begins.

    >>> steps = Steps(size=10, batch=4, drop_last=False)
    >>> Cursor(0, 4).advance(steps), Cursor(0, 8).advance(steps)
    (Cursor(epoch=0, position=8), Cursor(epoch=1, position=0))
    """

    epoch: int = 0
    position: int = 0

    def normal(self, steps: Steps) -> Cursor:
        """Return this cursor, or the next epoch with a step if none is left (a larger batch)."""
        cursor = self
        for _ in range(MOST_EMPTY if steps.count else 0):  # limit=0: no epoch has a step
            if steps.of(cursor.epoch).steps_from(cursor.position):
                return cursor
            cursor = Cursor(cursor.epoch + 1)
        if steps.count:
            raise PlanError(f"none of {MOST_EMPTY:,} epochs from epoch {self.epoch} on has a step")
        return self

    def advance(self, steps: Steps) -> Cursor:
        """Return the cursor after this step; after the last step, the start of the next epoch."""
        stop = steps.of(self.epoch).stop(self.position)
        return Cursor(self.epoch, stop).normal(steps)

    def set_epoch(self, epoch: int) -> Cursor:
        """Return the start of an epoch; this cursor itself where it is already in that epoch."""
        return self if epoch == self.epoch else Cursor(epoch)
