"""Where a loader is in its plan, and what its next iteration will be. Bookkeeping, no I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from penstock.errors import PlanError
from penstock.order import LARGEST, Cursor, Order, Plan, PlannedBatch, Steps, Topology
from penstock.order.state import check_data, check_format, check_identity, cursor_of, to_state

log = logging.getLogger("penstock")


class Course:
    """A cursor on a plan: the state of every loader.

    The cursor moves when a batch is delivered to the training loop, never because somebody asked
    for an iterator. Ranks are looked up when needed, not at construction: trainers start their
    process group long after the loader was built.

    Args:
        order: The order for a topology (the lanes of a block order may follow the world).
        topology: Asked at every use; ranks may appear later.
        limit: Batches an epoch (an int), or a share of it (a float), as Lightning has it.
        evaluation: Every iteration is epoch 0 from its start, nothing dropped.
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
    ) -> None:
        self._order, self._topology, self._fingerprint = order, topology, fingerprint
        self.batch, self.chunk, self.limit = batch, chunk, limit
        self.drop_last = drop_last and not evaluation
        self.evaluation = evaluation
        self.cursor = Cursor()
        self.turn = 0  # of the iterator that may move the cursor
        self._exact = True  # the cursor was set, not left behind by an abandoned epoch
        self._iterated = False  # right now, by the iterator whose turn it is
        self._cached: tuple[Topology, Plan] | None = None
        self._known: tuple[str | None] | None = None  # the fingerprint

    # -- the plan

    @property
    def plan(self) -> Plan:
        """The plan for the ranks there are now."""
        topology = self._topology()
        if self._cached is None or self._cached[0] != topology:
            self._cached = topology, self._make_plan(topology)
        return self._cached[1]

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
        """The plan, made anew of what changed; the cursor stays."""
        self._cached = None
        return self.plan

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

    def take_turn(self) -> int:
        """A new iterator begins: the cursor is its own from now on."""
        self.cursor, self._exact, self._iterated = self.start, True, True
        self.turn += 1
        return self.turn

    def end_turn(self, turn: int) -> None:
        """That iterator is done, or was left."""
        if turn == self.turn:
            self._iterated = False

    def delivered(self, after: Cursor) -> None:
        """A batch was handed to the training loop."""
        self.cursor, self._exact = after, False

    def walk(self, plan: Plan, cursor: Cursor) -> Iterator[PlannedBatch]:
        """Batches from ``cursor`` on, without end: through the epochs, or the same one again."""
        if not self.evaluation:
            yield from plan.walk(cursor, steps=LARGEST)
        while True:
            for batch in plan.walk(cursor, left := plan.steps.left_in_chunk(cursor.position)):
                left -= 1
                yield batch if left else replace(batch, after=Cursor())
            cursor = Cursor()

    # -- moving

    def move(self, cursor: Cursor) -> None:
        """Go there; live iterators lose their turn."""
        self.cursor, self._exact = cursor.normal(self.plan.steps), True
        self.turn += 1
        self._iterated = False

    def save(self) -> tuple[Cursor, int, bool, bool]:
        """Where it is, for `restore`."""
        return self.cursor, self.turn, self._exact, self._iterated

    def restore(self, saved: tuple[Cursor, int, bool, bool]) -> None:
        """Go back as if nothing had happened since; iterators of then go on."""
        self.cursor, self.turn, self._exact, self._iterated = saved

    def seek(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        check_epoch(epoch)
        if step < 0:
            raise PlanError(f"step must be 0 or more, got {step!r}")
        self.move(Cursor(epoch, self.plan.steps.start(step) if step else 0))

    def set_epoch(self, epoch: int) -> None:
        """The start of that epoch; inside it already: nothing."""
        check_epoch(epoch)
        goes_on = (
            self._iterated or self.start == self.cursor
        )  # else the epoch was left, and is over
        if epoch != self.cursor.epoch or not goes_on:
            self.move(Cursor(epoch))

    def set_chunk(self, chunk: int) -> None:
        """The start of a chunk of this epoch; past the last one: of a later epoch."""
        if chunk < 0:
            raise PlanError(f"chunk_idx must be 0 or more, got {chunk!r}")
        steps = self.plan.steps
        further, chunk = divmod(chunk, steps.total_chunks)
        self.move(Cursor(self.cursor.epoch + further, steps.start(chunk * (self.chunk or 0))))

    def set_batch_size(self, batch: int) -> None:
        """Another batch size from the next ``iter()`` on; the position stays."""
        before, self.batch = self.batch, batch
        try:
            self.replan()
        except PlanError:
            self.batch = before
            raise

    def set_chunk_size(self, chunk: int) -> None:
        """Another chunk size from the next ``iter()`` on; it beats a limit, the position stays."""
        before, self.chunk, self.limit = (self.chunk, self.limit), chunk, None
        try:
            self.replan()
        except PlanError:
            self.chunk, self.limit = before
            raise

    # -- state

    def state(self) -> dict[str, Any]:
        """What was delivered so far, as a small flat dict."""
        if self._known is None:  # trainers ask at every step
            self._known = (self._fingerprint(),)
        return to_state(self.cursor, self.plan.order, *self._known)

    def load(self, state: dict[str, Any], *, allow_changed_data: bool) -> None:
        """Go to where a state was taken, if it fits."""
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


def check_epoch(epoch: int) -> None:
    """Refuse an epoch that cannot be."""
    if epoch < 0:
        raise PlanError(f"epoch must be 0 or more, got {epoch!r}")


def share_of(batches: int, share: float) -> int:
    """So many batches are a share of them, as Lightning counts."""
    if not 0 <= share <= 1:
        raise PlanError(f"limit_batches as a share must be in [0, 1], got {share!r}")
    limit = int(batches * share)
    if share and not limit:
        raise PlanError(
            f"limit_batches={share!r} of {batches} batches is less than one: "
            f"use at least {1 / batches:.3g}, or a number of batches"
        )
    return limit
