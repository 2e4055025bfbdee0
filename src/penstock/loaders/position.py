"""The position of a loader in its plan, and what its next iteration delivers. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

from penstock.arguments import flag, whole_number
from penstock.errors import PlanError, StateError
from penstock.loaders.options import (
    check_batch_size,
    check_chunk_size,
    check_epoch,
    check_limit,
    share_of,
)
from penstock.order import LARGEST, Cursor, Indices, Order, Plan, PlannedBatch, Steps, Topology
from penstock.order.orders import places_of
from penstock.order.state import check_data, check_format, check_identity, cursor_of, to_state
from penstock.seeds import Seed

log = logging.getLogger("penstock")

_iterations = count(1)  # numbers of the iterations of all loaders: none is used twice
_SAVED: Final = ("cursor", "iteration", "failed", "_exact", "_resized", "live", "_origin")
_SETTINGS: Final = (
    *("_make_order", "_topology", "seed", "batch", "chunk", "limit", "evaluation", "drop_last"),
    *("samples", "_cached"),
)


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """What an order is made for.

    Args:
        samples: Samples of the dataset.
        seed: The seed in use, the same on all ranks.
        batch_size: Samples of a rank's batch.
        world_size: Number of ranks.
    """

    samples: int
    seed: int
    batch_size: int
    world_size: int


OrderFactory: TypeAlias = Callable[[OrderRequest], Order]


def order_factory(make: Callable[[int, int], Order]) -> OrderFactory:
    """Return an order factory that calls ``make(samples, seed)``.

    Args:
        make: An order class, or a function that returns an order. Use one defined at the top of a
            module (or a ``functools.partial`` of it), so that the loader can be pickled.
    """
    return partial(_make_by_size_and_seed, make)


def _make_by_size_and_seed(make: Callable[[int, int], Order], request: OrderRequest) -> Order:
    return make(request.samples, request.seed)


def _make_fixed(order: Order, request: OrderRequest) -> Order:
    return order


class Position:
    """A cursor on a plan: the state of every loader.

    The cursor moves when a batch is delivered to the training loop, never because an iterator was
    created. Ranks are looked up when needed, not at construction: trainers start their process
    group after the loader was built.

    Args:
        order: An `Order`, or a factory that returns the order for an `OrderRequest`. A factory is
            called again when the ranks, the seed, the batch size or the dataset size change.
        samples: Samples of the dataset.
        topology: Returns the rank and the number of ranks now.
        batch: Samples of a rank's batch.
        drop_last: Drop the incomplete last step of an epoch.
        chunk: Batches of a chunk; None for whole epochs.
        limit: Batches of an epoch (an int), or a share of them (a float), as in Lightning.
        evaluation: Every iteration is epoch 0 from its start, and nothing is dropped.
        fingerprint: Identity of the data for states, or a function that returns it.
        seed: The seed of the order; ignored for an `Order`, which has its own. It cannot be
            replaced after a batch was delivered.
    """

    def __init__(
        self,
        order: Order | OrderFactory,
        *,
        samples: int,
        topology: Callable[[], Topology],
        batch: int,
        drop_last: bool,
        chunk: int | None,
        limit: int | float | None,
        evaluation: bool,
        fingerprint: Callable[[], str | None] | str | None,
        seed: Seed,
    ) -> None:
        self.seed, self.samples = seed, samples
        self._make_order: OrderFactory
        self._set_order(order)
        self._topology, self._fingerprint = topology, fingerprint
        self.batch = check_batch_size(batch)
        self.chunk = None if chunk is None else check_chunk_size(chunk)
        self.limit = None if limit is None else check_limit(limit)
        self.evaluation = flag("evaluation", evaluation)
        self.drop_last = flag("drop_last", drop_last) and not evaluation
        self.cursor = Cursor()
        self.iteration = 0  # number of the iteration whose iterator may move the cursor
        self.failed: Cursor | None = None  # the cursor after a batch that raised, until next()
        self._exact = True  # the next iteration continues at the cursor, also inside an epoch
        self._resized = False  # since the iteration began: the next one continues at the cursor
        self.live: Plan | None = None  # the plan of the current iterator, while there is one
        self._origin = Cursor(), 0  # where the steps of this epoch are counted from, their size
        self._cached: tuple[Topology, int, Plan] | None = None
        self._known: tuple[str | None] | None = None  # the fingerprint
        self.rebuild_plan()  # invalid settings are refused here, not at the first batch

    def _set_order(self, order: Order | OrderFactory) -> None:
        self.follows_size = not isinstance(order, Order)
        if isinstance(order, Order):
            self._make_order, self.seed = partial(_make_fixed, order), Seed(order.seed)
        else:
            self._make_order = order

    def __getstate__(self) -> dict[str, Any]:
        """A copy continues at the position, as if it had been loaded from a state."""
        here = {"iteration": 0, "failed": None, "_exact": True, "_resized": False, "live": None}
        return {**vars(self), **here, "_cached": None}

    # -- the plan

    @property
    def topology(self) -> Topology:
        """The rank and the number of ranks now."""
        return self._topology()

    @property
    def plan(self) -> Plan:
        """The plan for the current ranks and seed."""
        topology = self.topology
        if self._cached is None or self._cached[:2] != (topology, self.seed.value):
            plan = self._make_plan(topology)  # may replace the seed by rank 0's
            self._cached = topology, self.seed.value, plan
        return self._cached[2]

    def _make_plan(self, topology: Topology) -> Plan:
        seed = self.seed.for_ranks(topology.world)
        order = self._make_order(OrderRequest(self.samples, seed, self.batch, topology.world))
        steps: Steps = getattr(order, "make_steps", Steps)(
            order.size,
            self.batch,
            topology.world,
            order.lanes,
            self.drop_last,
            limit=self.limit if isinstance(self.limit, int) else None,
            chunk=self.chunk,
            sizes=partial(places_of, order) if hasattr(order, "places") else None,
        )
        if isinstance(self.limit, float):
            steps = replace(steps, limit=share_of(steps.count, self.limit))
        return Plan(order, steps, topology.rank)

    def rebuild_plan(self) -> Plan:
        """Make the plan again from the current settings; the cursor stays."""
        self._cached = None
        return self.plan

    def use(
        self,
        *,
        order: Order | OrderFactory | None = None,
        seed: Seed | None = None,
        topology: Topology | None = None,
        limit: int | float | None = None,
        chunk: int | None = None,
        evaluation: bool | None = None,
        drop_last: bool | None = None,
    ) -> None:
        """Replace settings of the plan, from the next ``iter()`` on; the cursor stays.

        What is None stays as it is. If the settings are invalid together, none is replaced.

        Args:
            order: An `Order`, or a factory of orders.
            seed: The seed that an order factory gets.
            topology: This rank and the number of ranks, instead of those found at run time.
            limit: Batches of an epoch, or a share of them.
            chunk: Batches of a chunk; removes a limit.
            evaluation: Every iteration is epoch 0 from its start, and nothing is dropped.
            drop_last: Drop the incomplete last step of an epoch.

        Raises:
            PlanError: The settings are invalid.
        """
        before = {name: getattr(self, name) for name in (*_SETTINGS, "follows_size")}
        try:
            self.seed = self.seed if seed is None else seed
            if order is not None:
                self._set_order(order)
            if topology is not None:
                self._topology = partial(_same_topology, topology)
            if limit is not None:
                self.limit = check_limit(limit)
            if chunk is not None:
                self.chunk, self.limit = check_chunk_size(chunk), None
            if drop_last is not None:
                self.drop_last = flag("drop_last", drop_last)
            if evaluation is not None:
                self.evaluation = flag("evaluation", evaluation)
            self.drop_last = self.drop_last and not self.evaluation
            self.rebuild_plan()
        except PlanError:
            vars(self).update(before)
            raise

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
            return Cursor(here.epoch + 1)  # the epoch was left before its end: it is over
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
        """Return the number of a new iteration and its plan; iterators before it become stale."""
        self.seed.for_ranks(self.topology.world)  # the ranks there are now share it
        plan = self.plan
        self.seed.settle("batches were delivered")
        self.cursor, self._exact, self._resized = self.start, True, False
        self.failed, self.iteration, self.live = None, next(_iterations), plan
        self._origin = self._origin_in(plan, self.cursor)
        return self.iteration, plan

    def end_iteration(self) -> None:
        """Note that the iterator is exhausted, or was dropped."""
        self.live = None

    def delivered(self, after: Cursor) -> None:
        """Move the cursor: a batch was handed to the training loop, or skipped by it."""
        self.cursor, self._exact, self.failed = after, self._resized, None

    def keep_position(self) -> None:
        """Have the next ``iter()`` continue at the cursor, also without a chunk size."""
        self._exact = True

    def fail(self, plan: Plan) -> Cursor:
        """Note that the batch at the cursor raised; return the cursor after it, for ``next()``."""
        self.keep_position()
        last = self.evaluation and plan.steps.left_in_chunk(self.cursor.position) == 1
        self.failed = Cursor() if last else self.cursor.advance(plan.steps)
        return self.failed

    def walk(self, plan: Plan, cursor: Cursor) -> Iterator[PlannedBatch]:
        """Yield batches from ``cursor`` on, without end: all epochs, or epoch 0 repeatedly."""
        if not self.evaluation:
            yield from plan.walk(cursor, steps=LARGEST)
        while True:
            for batch in plan.walk(cursor, left := plan.steps.left_in_chunk(cursor.position)):
                left -= 1
                yield batch if left else replace(batch, after=Cursor())
            cursor = Cursor()

    # -- steps

    def locate(self, step: int, epoch: int | None) -> tuple[Plan, int, Indices]:
        """Return the plan, the epoch (by default the current one) and the positions of a step."""
        plan = self.live or self.plan
        here = Cursor() if self.evaluation else self.cursor
        origin, _ = self._origin_in(plan, here) if self.live is None else self._origin
        epoch = origin.epoch if epoch is None else check_epoch(epoch)
        begin, stop = plan.steps.span(
            whole_number("step", step, minimum=0), origin.position if epoch == origin.epoch else 0
        )
        return plan, epoch, plan.steps.rank_positions(begin, plan.rank, stop)

    def _origin_in(self, plan: Plan, here: Cursor) -> tuple[Cursor, int]:
        """Return where the steps of the epoch of ``here`` are counted from, and their size."""
        origin, whole = self._origin
        same = origin.epoch == here.epoch and whole == plan.steps.whole and not self.evaluation
        return self._origin if same else (here, plan.steps.whole)

    # -- moving

    def move(self, cursor: Cursor) -> None:
        """Go to ``cursor``; iterators become stale."""
        steps = self.plan.steps
        self.cursor, self._exact, self.failed = cursor.normal(steps), True, None
        self._origin = self.cursor, steps.whole
        self.iteration, self.live = next(_iterations), None

    def save(self) -> tuple[Any, ...]:
        """Return what `restore` needs."""
        return (*(getattr(self, name) for name in _SAVED), self.seed.save())

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Undo what happened since `save`; iterators of that time continue."""
        *values, seed = saved
        vars(self).update(zip(_SAVED, values, strict=True))
        self.seed.go_back(seed)

    def seek(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        epoch, step = check_epoch(epoch), whole_number("step", step, minimum=0)
        self.move(Cursor(epoch, self.plan.steps.start(step) if step else 0))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; inside that epoch already, stay."""
        epoch = check_epoch(epoch)
        # outside an iteration, an epoch that was left before its end is over
        inside = self.live is not None or self.start == self.cursor
        if epoch != self.cursor.epoch or not inside:
            self.move(Cursor(epoch))

    def set_chunk(self, chunk: int) -> None:
        """Go to the start of a chunk of this epoch; past the last chunk, of a later epoch."""
        chunk, steps = whole_number("chunk_idx", chunk, minimum=0), self.plan.steps
        further, chunk = divmod(chunk, steps.total_chunks)
        self.move(Cursor(self.cursor.epoch + further, steps.start(chunk * (self.chunk or 0))))

    def set_batch_size(self, batch: int) -> None:
        """Use another batch size from the next ``iter()`` on, which continues at the cursor."""
        before, self.batch = self.batch, check_batch_size(batch)
        try:
            self.rebuild_plan()
        except PlanError:
            self.batch = before
            raise
        self._exact = self._resized = True

    def set_chunk_size(self, chunk: int) -> None:
        """Use another chunk size from the next ``iter()`` on, which continues at the cursor.

        It removes a limit.
        """
        self.use(chunk=check_chunk_size(chunk))
        self._exact = self._resized = True

    # -- state

    def state(self) -> dict[str, Any]:
        """Return what was delivered so far, as a small flat dict."""
        if self._known is None:  # trainers ask at every step
            self._known = (self._data_fingerprint(),)
        return to_state(self.cursor, self.plan.order, *self._known)

    def load(
        self, state: dict[str, Any], *, allow_changed_data: bool, samples: int | None = None
    ) -> None:
        """Go to where a state was taken.

        Args:
            state: What `state` returned.
            allow_changed_data: Accept a state of data that has another fingerprint.
            samples: The dataset size now; None if it cannot change.

        Raises:
            StateError: The state does not fit; nothing changed.
        """
        allow_changed_data = flag("allow_changed_data", allow_changed_data)
        check_format(state)
        before, seed = self.samples, self.seed.save()
        try:
            self._adopt_seed(state)
            if samples is not None and self.follows_size and samples != self.samples:
                self.samples = samples
                self.rebuild_plan()
            check_identity(state, self.plan.order)
            if not allow_changed_data:
                check_data(state, self._data_fingerprint())
            cursor = cursor_of(state)
            self.move(cursor)
        except (PlanError, StateError):
            self.samples = before
            self.seed.go_back(seed)
            self.rebuild_plan()
            raise
        dropped = self.plan.steps.size - cursor.position if cursor != self.cursor else 0
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


def _same_topology(topology: Topology) -> Topology:
    return topology
