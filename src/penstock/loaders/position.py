"""The position of a loader in its plan, and what its next iteration delivers. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from penstock.arguments import flag, whole_number
from penstock.errors import PlanError
from penstock.loaders.options import check_batch_size, check_chunk_size, check_epoch
from penstock.loaders.plan_settings import OrderFactory, PlanSettings
from penstock.order import LARGEST, Cursor, Indices, Order, Plan, PlannedBatch
from penstock.order.orders import places_of, samples_of
from penstock.order.plan import Occurrence, Skips
from penstock.order.state import (
    check_data,
    check_format,
    check_identity,
    cursor_of,
    skips_of,
    to_state,
)

log = logging.getLogger("penstock")

_iterations = count(1)  # numbers of the iterations of all loaders: none is used twice


class Position(PlanSettings):
    """A cursor on a plan: the state of every loader.

    The cursor moves when a batch is delivered to the training loop, never because an iterator was
    created.

    Args:
        order: An `Order`, or a factory of orders; see `PlanSettings`.
        fingerprint: Identity of the data for states, or a function that returns it.
        **settings: The other arguments of `PlanSettings`.
    """

    def __init__(
        self,
        order: Order | OrderFactory,
        *,
        fingerprint: Callable[[], str | None] | str | None,
        **settings: Any,
    ) -> None:
        super().__init__(order, **settings)
        self._fingerprint = fingerprint
        self.cursor = Cursor()
        self.iteration = 0  # number of the iteration whose iterator may move the cursor
        self.failed: Cursor | None = None  # the cursor after a batch that raised, until next()
        self.fetched: Cursor | None = None  # the cursor after a batch that is being delivered
        self._exact = True  # the next iteration continues at the cursor, also inside an epoch
        self._resized = False  # since the iteration began: the next one continues at the cursor
        self.live: Plan | None = None  # the plan of the current iterator, while there is one
        # by epoch: the position that its steps are counted from, and their size
        self._origins: dict[int, tuple[int, int]] = {}
        self._iterated = 0  # the epoch of the current iterator
        self._known: tuple[str | None] | None = None  # the fingerprint

    def __getstate__(self) -> dict[str, Any]:
        """A copy continues at the position, as if it had been loaded from a state."""
        here = {"iteration": 0, "failed": None, "_exact": True, "_resized": False, "live": None}
        here |= {"fetched": None}
        return {**vars(self), **here, "_cached": None}

    def resize(self, samples: int) -> None:
        """Use another dataset size, where the next ``iter()`` begins an epoch."""
        self.cursor, self._exact, self._known = self.start, True, None
        self.samples = samples
        self.rebuild_plan()

    def forget_fingerprint(self) -> None:
        """Ask for the fingerprint again at the next state: the data may have changed."""
        self._known = None

    # -- the next iteration

    @property
    def start(self) -> Cursor:
        """Where the next ``iter()`` begins."""
        if self.evaluation:
            return Cursor()
        here = self.cursor.normal(self.plan.steps)  # ranks or batch size may have changed
        if self.chunk is None and here.position and not self._exact:
            return Cursor(here.epoch + 1).normal(self.plan.steps)  # an epoch that was left is over
        return here

    @property
    def remaining(self) -> int:
        """Batches the next ``iter()`` yields."""
        return self._left(self.plan, self.start)

    @property
    def remaining_here(self) -> int:
        """Batches that the current iterator still yields."""
        return self._left(self.live or self.plan, self.cursor)

    def _left(self, plan: Plan, cursor: Cursor) -> int:
        left = plan.left_in_chunk(cursor)
        if self.progress is None:
            return left
        return min(left, self.progress.size - self._done_at(cursor))

    @property
    def length(self) -> int:
        """Batches of the chunk the cursor is in, the same all through it."""
        steps = self.plan.steps
        here = Cursor() if self.evaluation else self.cursor.normal(steps)
        if self.progress is None:
            origin = self._origin_of(self.plan, here.epoch)
            return steps.of(here.epoch).chunk_length(here.position, origin)
        done, left = self._done_at(here), self.plan.left_in_chunk(here)
        return done + min(left, self.progress.size - done)

    def _done_at(self, cursor: Cursor) -> int:
        """Return the batches of the chunk at ``cursor`` that were delivered; for `progress`."""
        assert self.progress is not None
        return self.progress.done if cursor.epoch == self.cursor.epoch else 0

    def begin_iteration(self) -> tuple[int, Plan]:
        """Return the number of a new iteration and its plan; iterators before it become stale."""
        self.seed.for_ranks(self.topology.world)  # the ranks there are now share it
        plan = self.plan
        self.seed.settle("batches were delivered")
        if self.progress is not None:
            self.progress.begin(self._done_at(self.start))
        self.cursor, self._exact, self._resized = self.start, True, False
        self.failed, self.iteration, self.live = None, next(_iterations), plan
        epoch = self._iterated = self.cursor.epoch
        origin = self._origin_of(plan, epoch), plan.steps.whole
        # an epoch that was resumed inside is counted from there forever: samples_at must agree
        # with what was delivered; other epochs begin at 0 and need no entry
        self._origins = {e: at for e, at in self._origins.items() if at[0]} | {epoch: origin}
        return self.iteration, plan

    def delivered(self, after: Cursor) -> None:
        """Move the cursor: a batch was handed to the training loop, or skipped by it."""
        if self.progress is not None:
            ended = after.epoch != self.cursor.epoch
            self.progress.count(world=(self.live or self.plan).steps.world, ended=ended)
        self.cursor, self._exact, self.failed, self.fetched = after, self._resized, None, None

    def keep_position(self) -> None:
        """Have the next ``iter()`` continue at the cursor, also without a chunk size."""
        self._exact = True

    def fail(self, plan: Plan) -> Cursor:
        """Note that the batch at the cursor raised; return the cursor after it, for ``next()``."""
        self.keep_position()
        self.fetched = None
        last = self.evaluation and plan.left_in_chunk(self.cursor) == 1
        self.failed = Cursor() if last else self.cursor.advance(plan.steps)
        return self.failed

    def walk(self, plan: Plan, cursor: Cursor) -> Iterator[PlannedBatch]:
        """Yield batches from ``cursor`` on, without end: all epochs, or epoch 0 repeatedly."""
        if not self.evaluation:
            yield from plan.walk(cursor, steps=LARGEST)
        while True:
            for batch in plan.walk(cursor, left := plan.left_in_chunk(cursor)):
                left -= 1
                yield batch if left else replace(batch, after=Cursor())
            cursor = Cursor()

    # -- steps

    def locate(self, step: int, epoch: int | None) -> tuple[Plan, int, Indices]:
        """Return the plan, the epoch (by default the current one) and the positions of a step."""
        plan = self.live or self.plan
        if epoch is None:
            here = 0 if self.evaluation else self.cursor.epoch
            epoch = here if self.live is None else self._iterated
        epoch = check_epoch(epoch)
        begin, stop = self.span(step, epoch)
        positions = plan.steps.of(epoch).rank_positions(begin, plan.rank, stop)
        return plan, epoch, plan.skips.original(epoch, positions)

    def span(self, step: int, epoch: int) -> tuple[int, int]:
        """Return the begin and end of a step of an epoch over all ranks, in kept positions."""
        plan = self.live or self.plan
        step = whole_number("step", step, minimum=0)
        return plan.steps.of(epoch).span(step, self._origin_of(plan, epoch))

    def when(self, sample: int, epochs: Iterable[int]) -> list[Occurrence]:
        """Return the occurrences of a sample in these epochs, in the order of the epochs."""
        plan = self.live or self.plan
        samples = samples_of(plan.order)
        if whole_number("sample", sample, minimum=0) >= samples:
            raise PlanError(f"sample must be in [0, {samples}), got {sample!r}")
        return [
            found
            for epoch in map(check_epoch, epochs)
            for found in plan.when(epoch, sample, self._origin_of(plan, epoch))
        ]

    def _origin_of(self, plan: Plan, epoch: int) -> int:
        """Return the position that the steps of an epoch are counted from."""
        position, whole = self._origins.get(epoch, (0, 0))
        # steps of another size (batch size or ranks changed) begin at the cursor instead
        if self.evaluation or whole == plan.steps.whole:
            return 0 if self.evaluation else position
        return self.cursor.position if epoch == self.cursor.epoch else 0

    # -- moving

    def move(self, cursor: Cursor) -> None:
        """Go to ``cursor``; iterators become stale."""
        steps = self.plan.steps
        self.cursor, self._exact = cursor.normal(steps), True
        self.failed = self.fetched = None
        if self.progress is not None:
            self.progress.begin(0)
        self._origins = {e: at for e, at in self._origins.items() if e < self.cursor.epoch}
        self._origins[self.cursor.epoch] = self.cursor.position, steps.whole
        self.iteration, self.live = next(_iterations), None

    def seek(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        epoch, step = check_epoch(epoch), whole_number("step", step, minimum=0)
        self.move(Cursor(epoch, self.plan.steps.of(epoch).start(step) if step else 0))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; stay if the position is inside that epoch already."""
        epoch = check_epoch(epoch)
        # outside an iteration, an epoch that was left before its end is over
        inside = self.live is not None or self.start == self.cursor
        if epoch != self.cursor.epoch or not inside:
            self.move(Cursor(epoch))

    def set_chunk(self, chunk: int) -> None:
        """Go to the start of a chunk of this epoch; past the last chunk, of a later epoch."""
        chunk, epoch = whole_number("chunk_idx", chunk, minimum=0), self.cursor.epoch
        if self.progress is not None:
            raise PlanError(
                f"chunks of {self.progress.schedule} have no known positions: go to a step "
                "with seek(epoch, step)"
            )
        all_steps = self.plan.steps
        if all_steps.is_constant:  # all epochs have as many chunks
            further, chunk = divmod(chunk, all_steps.total_chunks)
            epoch += further
        while chunk >= (steps := all_steps.of(epoch)).total_chunks:
            epoch, chunk = epoch + 1, chunk - steps.total_chunks
        self.move(Cursor(epoch, steps.start(chunk * (self.chunk or 0))))

    def skip(self, epoch: int, start: int, stop: int) -> None:
        """Leave out positions of an epoch that are still to come."""
        epoch = check_epoch(epoch)
        start = whole_number("start", start, minimum=0)
        stop = whole_number("stop", stop, minimum=0)
        if start > stop:
            raise PlanError(f"skip positions from start to stop, got {start!r} to {stop!r}")
        if self.evaluation:
            raise PlanError(
                "an evaluation loader delivers every sample, every time: skip positions of a "
                "loader for training"
            )
        plan = self.live or self.plan
        after = plan.skips.to_order(self.fetched or self.cursor)
        asked = Skips([(epoch, start, min(stop, places_of(plan.order, epoch)))])
        ahead = asked.ahead_of(after)
        if Skips(ahead).ranges != asked.ranges:
            log.info(
                "skip(%d, %d, %d): what was delivered up to epoch %d, position %d is not skipped",
                *(epoch, start, stop, after.epoch, after.position),
            )
        if self.failed is not None and Skips(ahead).ahead_of(
            plan.skips.to_order(self.failed)
        ) != list(Skips(ahead).ranges):
            self.failed = None  # other samples are at the cursor now
        self._skip(self.skips.union(ahead))

    def _skip(self, skips: Skips) -> None:
        """Use other skips; kept positions before the cursor stay the same."""
        if skips.ranges == self.skips.ranges:
            return
        self.skips = skips
        self.rebuild_plan()
        if self.live is not None:
            self.live = self.live.skipping(skips)

    def set_batch_size(self, batch: int) -> None:
        """Use another batch size from the next ``iter()`` on, which continues at the cursor."""
        with self.undone_if_refused():
            self.batch = check_batch_size(batch)
            self.rebuild_plan()
        self._exact = self._resized = True

    def set_chunk_size(self, chunk: Any) -> None:
        """Use another chunk size from the next ``iter()`` on, which continues at the cursor.

        It removes a limit.
        """
        self.use(chunk=check_chunk_size(chunk) if chunk is None else chunk)
        self._exact = self._resized = True

    def skipped_lines(self) -> list[str]:
        """Return the line on skipped positions for ``describe``; none if nothing is skipped."""
        positions = sum(stop - start for _, start, stop in self.skips.ranges)
        epochs = len({epoch for epoch, _, _ in self.skips.ranges})
        return [f"  skipped   {positions:,} positions of {epochs} epochs"] if positions else []

    # -- state

    def state(self) -> dict[str, Any]:
        """Return what was delivered so far, as a small flat dict."""
        if self._known is None:  # trainers ask at every step
            self._known = (self._data_fingerprint(),)
        state = to_state(self.cursor, self.plan.order, *self._known, skips=self.skips)
        return state if self.progress is None else state | self.progress.to_state()

    def load(
        self, state: dict[str, Any], *, allow_changed_data: bool, samples: int | None = None
    ) -> None:
        """Go to where a state was taken.

        Later positions that this loader was asked to skip are still skipped.

        Args:
            state: What `state` returned.
            allow_changed_data: Accept a state whose data had another fingerprint.
            samples: The dataset size now; None if it cannot change.

        Raises:
            StateError: The state does not fit; nothing changed.
        """
        allow_changed_data = flag("allow_changed_data", allow_changed_data)
        check_format(state)
        with self.undone_if_refused():
            self._adopt_seed(state)
            if samples is not None and self.follows_size and samples != self.samples:
                self.samples = samples
                self.rebuild_plan()
            check_identity(state, self.plan.order)
            if not allow_changed_data:
                check_data(state, self._data_fingerprint())
            cursor, ours = cursor_of(state), Skips() if self.evaluation else skips_of(state)
            self._skip(ours.union(self.skips.ahead_of(cursor)))
            cursor = self.skips.to_kept(cursor)
            self.move(cursor)
            if self.progress is not None:
                self.progress.load(state)
                self.progress.begin(self.progress.done if cursor == self.cursor else 0)
        steps = self.plan.steps.of(cursor.epoch)
        dropped = steps.size - cursor.position if cursor != self.cursor else 0
        if 0 < dropped < self.plan.steps.world and not self.drop_last:
            log.warning(
                "dropping the last %d samples of epoch %d: fewer than world_size=%d",
                *(dropped, cursor.epoch, self.plan.steps.world),
            )

    def _adopt_seed(self, state: dict[str, Any]) -> None:
        """Take the seed of a state in place of one that was drawn."""
        same_kind = state.get("order") == self.plan.order.kind
        if not self.seed.given and same_kind and isinstance(state.get("seed"), int):
            self.seed.restore(state["seed"])

    def _data_fingerprint(self) -> str | None:
        found = self._fingerprint
        return found() if callable(found) else found
