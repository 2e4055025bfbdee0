"""Where a loader is in its plan, and what its next iteration will be. Bookkeeping, no I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any, Final

import numpy as np

from penstock.arguments import flag, real_number, whole_number
from penstock.errors import PlanError
from penstock.order import LARGEST, Cursor, Indices, Order, Plan, PlannedBatch, Steps, Topology
from penstock.order.state import check_data, check_format, check_identity, cursor_of, to_state
from penstock.seeds import Seed

log = logging.getLogger("penstock")

_turns = count(1)  # one for every iteration of every loader: none is ever used twice
_PLACE: Final = ("cursor", "turn", "failed", "_exact", "_resized", "live", "_origin")


class Position:
    """A cursor on a plan: the state of every loader.

    The cursor moves when a batch is delivered to the training loop, never because somebody asked
    for an iterator. Ranks are looked up when needed, not at construction: trainers start their
    process group long after the loader was built.

    Args:
        order: The order for a topology (the lanes of a block order may follow the world).
        topology: Asked at every use; ranks may appear later.
        batch: Samples of a rank's batch.
        drop_last: Drop the incomplete last step of an epoch.
        chunk: Batches of a chunk; None for whole epochs.
        limit: Batches an epoch (an int), or a share of it (a float), as Lightning has it.
        evaluation: Every iteration is epoch 0 from its start, nothing dropped.
        fingerprint: Identity of the data, asked when a state is taken or loaded.
        seed: The seed of the order. It cannot be replaced once a batch was asked for.
    """

    def __init__(
        self,
        order: Callable[[Topology], Order],
        *,
        topology: Callable[[], Topology],
        batch: int,
        drop_last: bool,
        chunk: int | None,
        limit: int | float | None,
        evaluation: bool,
        fingerprint: Callable[[], str | None],
        seed: Seed,
    ) -> None:
        self._order, self._topology, self._fingerprint = order, topology, fingerprint
        self.seed = seed
        self.batch = check_batch_size(batch)
        self.chunk = None if chunk is None else check_chunk_size(chunk)
        self.limit = None if limit is None else check_limit(limit)
        self.evaluation = flag("evaluation", evaluation)
        self.drop_last = flag("drop_last", drop_last) and not evaluation
        self.cursor = Cursor()
        self.turn = 0  # of the iterator that may move the cursor
        self.failed: Cursor | None = None  # the place after a batch that raised, until it is passed
        self._exact = True  # the next iteration continues here, and does not begin an epoch
        self._resized = False  # since the iteration began: what it leaves is continued
        self.live: Plan | None = None  # of the iterator whose turn it is, while there is one
        self._origin = Cursor(), 0  # where this epoch's steps are counted from, and their size
        self._cached: tuple[Topology, int, Plan] | None = None
        self._known: tuple[str | None] | None = None  # the fingerprint

    def __getstate__(self) -> dict[str, Any]:
        """A copy continues at the position, as if it had been loaded from a state."""
        here = {"turn": 0, "failed": None, "_exact": True, "_resized": False, "live": None}
        return {**vars(self), **here, "_cached": None}

    # -- the plan

    @property
    def plan(self) -> Plan:
        """The plan for the ranks there are now."""
        topology = self._topology()
        if self._cached is None or self._cached[:2] != (topology, self.seed.value):
            plan = self._make_plan(topology)  # which may replace the seed by rank 0's
            self._cached = topology, self.seed.value, plan
        return self._cached[2]

    def _make_plan(self, topology: Topology) -> Plan:
        order = self._order(topology)
        steps = Steps(
            order.size,
            self.batch,
            topology.world,
            order.lanes,
            self.drop_last,
            limit=self.limit if isinstance(self.limit, int) else None,
            chunk=self.chunk,
        )
        if isinstance(self.limit, float):
            steps = replace(steps, limit=share_of(steps.count, self.limit))
        return Plan(order, steps, topology.rank)

    def replan(self) -> Plan:
        """The plan, made again of what changed; the cursor stays."""
        self._cached = None
        return self.plan

    def reorder(self) -> None:
        """Make the plan again for data that changed, where an epoch is about to begin."""
        self.cursor, self._exact, self._known = self.start, True, None
        self.replan()

    def forget_fingerprint(self) -> None:
        """The data may have changed: it is asked again."""
        self._known = None

    # -- the next iteration

    @property
    def start(self) -> Cursor:
        """Where the next ``iter()`` begins."""
        if self.evaluation:
            return Cursor()
        here = self.cursor.normal(self.plan.steps)  # ranks and batch size change under way
        if self.chunk is None and here.position and not self._exact:
            return Cursor(here.epoch + 1)  # the abandoned epoch is over
        return here

    @property
    def remaining(self) -> int:
        """Batches the next ``iter()`` yields."""
        return self.plan.steps.left_in_chunk(self.start.position)

    @property
    def length(self) -> int:
        """Batches of the chunk the cursor is in, the same all through it."""
        steps = self.plan.steps
        here = Cursor() if self.evaluation else self.cursor.normal(steps)
        return steps.chunk_length(here.position)

    def begin_iteration(self) -> tuple[int, Plan]:
        """Its turn and its plan: the cursor belongs to this iterator from now on."""
        self.seed.for_ranks(self._topology().world)  # the ranks there are now share it
        plan = self.plan
        self.seed.settle("batches were delivered")
        self.cursor, self._exact, self._resized = self.start, True, False
        self.failed, self.turn, self.live = None, next(_turns), plan
        self._origin = self._origin_in(plan, self.cursor)
        return self.turn, plan

    def end_iteration(self) -> None:
        """The iterator is exhausted, or gone."""
        self.live = None

    def delivered(self, after: Cursor) -> None:
        """A batch was handed to the training loop, or given up by it."""
        self.cursor, self._exact, self.failed = after, self._resized, None

    def keep_position(self) -> None:
        """The next ``iter()`` continues at the cursor, also without a chunk size."""
        self._exact = True

    def fail(self, plan: Plan) -> Cursor:
        """The batch at the cursor raised; returns the place after it, where `next` continues."""
        self.keep_position()
        last = self.evaluation and plan.steps.left_in_chunk(self.cursor.position) == 1
        self.failed = Cursor() if last else self.cursor.advance(plan.steps)
        return self.failed

    def walk(self, plan: Plan, cursor: Cursor) -> Iterator[PlannedBatch]:
        """Batches from ``cursor`` on, without end: through the epochs, or the same one again."""
        if not self.evaluation:
            yield from plan.walk(cursor, steps=LARGEST)
        while True:
            for batch in plan.walk(cursor, left := plan.steps.left_in_chunk(cursor.position)):
                left -= 1
                yield batch if left else replace(batch, after=Cursor())
            cursor = Cursor()

    # -- steps

    def locate(self, step: int, epoch: int | None) -> tuple[Plan, int, Indices]:
        """The plan, the epoch (of the iteration, or of the cursor) and the positions of a step."""
        plan = self.live or self.plan
        here = Cursor() if self.evaluation else self.cursor
        origin, _ = self._origin_in(plan, here) if self.live is None else self._origin
        epoch = origin.epoch if epoch is None else check_epoch(epoch)
        begin, stop = plan.steps.span(
            whole_number("step", step, minimum=0), origin.position if epoch == origin.epoch else 0
        )
        return plan, epoch, plan.steps.rank_positions(begin, plan.rank, stop)

    def _origin_in(self, plan: Plan, here: Cursor) -> tuple[Cursor, int]:
        """A place on the grid of steps that the epoch of ``here`` is read in, and their size."""
        origin, whole = self._origin
        same = origin.epoch == here.epoch and whole == plan.steps.whole and not self.evaluation
        return self._origin if same else (here, plan.steps.whole)

    # -- moving

    def move(self, cursor: Cursor) -> None:
        """Go there; live iterators lose their turn."""
        steps = self.plan.steps
        self.cursor, self._exact, self.failed = cursor.normal(steps), True, None
        self._origin = self.cursor, steps.whole
        self.turn, self.live = next(_turns), None

    def save(self) -> tuple[Any, ...]:
        """Return where it is, for `restore`."""
        return (*(getattr(self, name) for name in _PLACE), self.seed.save())

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Go back as if nothing had happened since; iterators of then continue."""
        *place, seed = saved
        for name, value in zip(_PLACE, place, strict=True):
            setattr(self, name, value)
        self.seed.go_back(seed)

    def seek(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        epoch, step = check_epoch(epoch), whole_number("step", step, minimum=0)
        self.move(Cursor(epoch, self.plan.steps.start(step) if step else 0))

    def set_epoch(self, epoch: int) -> None:
        """The start of that epoch; inside it already: nothing."""
        epoch = check_epoch(epoch)
        # else the epoch was left, and is over
        inside = self.live is not None or self.start == self.cursor
        if epoch != self.cursor.epoch or not inside:
            self.move(Cursor(epoch))

    def set_chunk(self, chunk: int) -> None:
        """The start of a chunk of this epoch; past the last one: of a later epoch."""
        chunk, steps = whole_number("chunk_idx", chunk, minimum=0), self.plan.steps
        further, chunk = divmod(chunk, steps.total_chunks)
        self.move(Cursor(self.cursor.epoch + further, steps.start(chunk * (self.chunk or 0))))

    def set_batch_size(self, batch: int) -> None:
        """Another batch size from the next ``iter()`` on, which continues at the position."""
        before, self.batch = self.batch, check_batch_size(batch)
        try:
            self.replan()
        except PlanError:
            self.batch = before
            raise
        self._exact = self._resized = True

    def set_chunk_size(self, chunk: int) -> None:
        """Another chunk size from the next ``iter()`` on; it beats a limit, the position stays."""
        before = self.chunk, self.limit
        self.chunk, self.limit = check_chunk_size(chunk), None
        try:
            self.replan()
        except PlanError:
            self.chunk, self.limit = before
            raise
        self._exact = self._resized = True

    # -- state

    def state(self) -> dict[str, Any]:
        """What was delivered so far, as a small flat dict."""
        if self._known is None:  # trainers ask at every step
            self._known = (self._fingerprint(),)
        return to_state(self.cursor, self.plan.order, *self._known)

    def load(self, state: dict[str, Any], *, allow_changed_data: bool) -> None:
        """Go to where a state was taken, if it fits."""
        allow_changed_data = flag("allow_changed_data", allow_changed_data)
        check_format(state)
        check_identity(state, self.plan.order)
        if not allow_changed_data:
            check_data(state, self._fingerprint())
        cursor = cursor_of(state)
        self.move(cursor)
        given_up = self.plan.steps.size - cursor.position if cursor != self.cursor else 0
        if 0 < given_up < self.plan.steps.world and not self.drop_last:
            log.warning(
                "%d samples of epoch %d are given up: too few for %d ranks",
                *(given_up, cursor.epoch, self.plan.steps.world),
            )


def check_epoch(epoch: int) -> int:
    """The epoch, refused below 0."""
    return whole_number("epoch", epoch, minimum=0)


def check_batch_size(batch_size: int | None) -> int:
    """The batch size, refused below one sample."""
    return whole_number("batch_size", batch_size, minimum=1, unit="sample")


def check_chunk_size(chunk_size: int) -> int:
    """The chunk size, refused below one batch."""
    if isinstance(chunk_size, bool | np.bool_):  # third in torch's signature is shuffle
        raise PlanError(
            f"chunk_size must be a number of batches, got {chunk_size!r}: "
            f"to set the shuffle, pass shuffle={chunk_size!r} by keyword"
        )
    return whole_number("chunk_size", chunk_size, minimum=1, unit="batch")


def check_limit(limit: int | float) -> int | float:
    """A number of batches, or a share of them (a float)."""
    if isinstance(limit, float | np.floating):
        return real_number("limit_batches", limit)
    return whole_number("limit_batches", limit, minimum=0, unit="batch")


def share_of(batches: int, share: float) -> int:
    """The number of batches that a share of them is, as Lightning counts."""
    if not 0 <= share <= 1:
        raise PlanError(f"limit_batches as a share must be in [0, 1], got {share!r}")
    limit = int(batches * share)
    if share and not limit:
        raise PlanError(
            f"limit_batches={share!r} of {batches} batches is less than one: "
            f"use at least {1 / batches:.3g}, or a number of batches"
        )
    return limit
