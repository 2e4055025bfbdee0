"""The plan of a loader, and the settings it is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from penstock.arguments import choice, flag
from penstock.errors import PlanError, StateError
from penstock.loaders.chunk_schedule import ChunkProgress, ChunkSchedule, chunk_schedule
from penstock.loaders.options import check_batch_size, check_limit, share_of
from penstock.order import (
    BlockOrder,
    Order,
    Plan,
    SequentialOrder,
    ShuffledOrder,
    Steps,
    Topology,
)
from penstock.order.plan import NO_SKIPS
from penstock.ranks import Seed

ORDERS: Final = ("shuffled", "sequential", "block")
BLOCK_SAMPLES, WINDOW_BLOCKS = 64, 16  # few enough seeks for files, enough mixing for training


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


def _always(value: Any, *request: Any) -> Any:
    """Return ``value``; a partial of this can be pickled, and a lambda cannot."""
    return value


def make_order(size: int, seed: int, *, shuffle: bool) -> Order:
    """Return a shuffled or a sequential order."""
    return ShuffledOrder(size, seed) if shuffle else SequentialOrder(size, seed)


def order_named(kind: str, size: int, seed: int) -> Order:
    """Return an order by its name in a configuration, one of `ORDERS`.

    >>> order_named("block", 1000, seed=42).block
    64
    """
    if choice("order", kind, ORDERS) == "block":
        return BlockOrder(size, seed, block=BLOCK_SAMPLES, window=WINDOW_BLOCKS)
    return make_order(size, seed, shuffle=kind == "shuffled")


class PlanSettings:
    """The settings from which the plan of a loader is made, and that plan.

    Ranks are looked up when needed, not at construction: trainers start their process group after
    the loader was built.

    Args:
        order: An `Order`, or a factory that returns the order for an `OrderRequest`. A factory is
            called again when the ranks, the seed, the batch size or the dataset size change.
        samples: Samples of the dataset.
        topology: Returns the rank and the number of ranks now.
        batch: Samples of a rank's batch.
        drop_last: Drop the incomplete last step of an epoch.
        chunk: Batches of a chunk, or what `chunk_schedule` accepts; None for whole epochs.
        limit: Batches of an epoch (an int), or a share of them (a float), as in Lightning.
        evaluation: Every iteration is epoch 0 from its start, and nothing is dropped.
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
        chunk: Any,
        limit: int | float | None,
        evaluation: bool,
        seed: Seed,
    ) -> None:
        self.seed, self.samples, self.batch = seed, samples, check_batch_size(batch)
        self._make_order: OrderFactory
        self._topology, self.skips = topology, NO_SKIPS
        self.limit: int | float | None = None
        self._set_chunks(None)
        self._cached: tuple[Topology, int, Plan] | None = None
        self.evaluation = flag("evaluation", evaluation)
        self.drop_last = flag("drop_last", drop_last)
        # invalid settings are refused here, not at the first batch
        self.use(order=order, limit=limit, chunk=chunk)

    @property
    def chunk(self) -> int | None:
        """Batches of a chunk, of the current one if they differ; None for whole epochs."""
        return self._chunk if self.progress is None else self.progress.size

    @property
    def chunk_sizes(self) -> int | ChunkSchedule | None:
        """The chunk size, or the sizes that change, as they were given."""
        return self._chunk if self.progress is None else self.progress.schedule

    def _set_chunks(self, chunk: Any) -> None:
        sizes = chunk_schedule(chunk)
        self._chunk = None if isinstance(sizes, ChunkSchedule) else sizes
        self.progress = ChunkProgress(sizes) if isinstance(sizes, ChunkSchedule) else None

    def _set_order(self, order: Order | OrderFactory) -> None:
        self.follows_size = not isinstance(order, Order)
        if isinstance(order, Order):
            self._make_order, self.seed = partial(_always, order), Seed(order.seed)
        else:
            self._make_order = order

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
            chunk=self._chunk,  # chunks that differ are counted, not planned
        )
        if isinstance(self.limit, float):
            steps = replace(steps, limit=share_of(steps.count, self.limit))
        return Plan(order, steps, topology.rank).skipping(self.skips)

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
        chunk: Any = None,
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
        with self.undone_if_refused():
            self.seed = self.seed if seed is None else seed
            if order is not None:
                self._set_order(order)
            if topology is not None:
                self._topology = partial(_always, topology)
            if limit is not None:
                self.limit = check_limit(limit)
            if chunk is not None:
                self._set_chunks(chunk)
                self.limit = None
            if drop_last is not None:
                self.drop_last = flag("drop_last", drop_last)
            if evaluation is not None:
                self.evaluation = flag("evaluation", evaluation)
            self.drop_last = self.drop_last and not self.evaluation
            if self.evaluation and self.progress is not None:
                raise PlanError(
                    f"an evaluation loader cannot have chunks of {self.progress.schedule}, because "
                    "all its iterations are the same: pass a number of batches"
                )
            self.rebuild_plan()

    # -- undoing

    def save(self) -> dict[str, Any]:
        """Return what `restore` needs."""
        # a seed may be shared with other loaders: the object stays, and its value is kept apart
        seed = self.seed, self.seed.save()
        return {**vars(self), "progress": copy(self.progress), "seed": seed}

    def restore(self, saved: dict[str, Any]) -> None:
        """Undo what happened since `save`; iterators of that time continue."""
        seed, value = saved["seed"]
        vars(self).update({**saved, "seed": seed})
        seed.go_back(value)

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """Return a context whose changes are undone if one of them is refused."""
        saved = self.save()
        try:
            yield
        except (PlanError, StateError):
            self.restore(saved)
            raise
