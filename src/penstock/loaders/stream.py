"""Shuffled batches straight from storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.errors import PlanError, StateError
from penstock.loaders.base import Loader, Stream, current_topology
from penstock.loaders.course import Course
from penstock.loaders.seeds import resolve_seed
from penstock.order import BlockOrder, Cursor, Order, Plan, Topology
from penstock.order.state import check_format
from penstock.order.stored import StoredOrder
from penstock.sources import open_source
from penstock.sources.base import Field, MappedSource, Source
from penstock.streaming.batches import BatchStream, Transform
from penstock.streaming.budget import (
    LENT_BATCHES,
    Demand,
    format_bytes,
    parse_bytes,
    usable_cores,
)
from penstock.streaming.memory import Slots
from penstock.streaming.pipeline import Pipeline
from penstock.streaming.placing import Placer
from penstock.streaming.segments import Segment, plan_rounds
from penstock.streaming.transfer import transfer_to

REREAD_SHARE = 1 / 4  # of a block's rows, at most, that rollouts read once more


@dataclass(frozen=True, slots=True)
class Geometry:
    """How storage is read: what was asked for, or adopted from a state; None where neither."""

    block: int | None
    window: int | None
    lanes: int | None

    def __post_init__(self) -> None:
        names = {"block": "block_samples", "window": "window_blocks", "lanes": "lanes"}
        for name, said in names.items():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PlanError(f"{said} must be at least 1, got {value!r}")


class StreamLoader(Loader):
    """Shuffled batches straight from storage, in place, at storage speed.

    Blocks from all over the dataset are read ahead by threads, mixed in windows, and handed out
    as batches; memory stays within a budget, however large the data. Everything every loader
    promises holds: exact resume on any number of ranks, chunks, ``samples_at``.

    A source with one unnamed array gives tensors; named fields give a dict of tensors.

    Args:
        source: A `Source`, or anything `open_source` opens: a path, a URL, arrays.
        batch_size: Samples of this rank's batch.
        block_samples: Consecutive samples read in one go; defaults to the storage's chunking.
        window_blocks: Blocks a lane mixes at once; defaults to what the budget allows.
        chunk_size: Batches a chunk; None for the whole epoch.
        steps: Consecutive rows a sample is made of (rollouts); none is lost at block borders.
        device: Where batches go; copies overlap the step before. None: they stay on the CPU.
        memory_budget: Hard bound on the buffers: bytes, or a text such as ``"1GB"``.
        transform: ``transform(batch, rng)``: the whole batch, and a keyed generator.
        collate: ``collate(batch)``: what becomes of the batch last.
        evaluation: Always the same epoch, in order, nothing dropped, from the beginning.
        lanes: Independent readers' shares of the order; defaults to the world size.

    >>> loader = StreamLoader(np.arange(1000, dtype=np.float32), batch_size=100)
    >>> with loader:
    ...     seen = torch.cat(list(loader))
    >>> bool((seen.sort().values == torch.arange(1000)).all())
    True
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        *,
        block_samples: int | None = None,
        window_blocks: int | None = None,
        chunk_size: int | None = None,
        shuffle: bool = True,
        seed: int | None = 42,
        drop_last: bool = True,
        steps: int = 1,
        device: torch.device | str | None = None,
        memory_budget: int | str = "1GB",
        transform: Transform | None = None,
        collate: Callable[[Any], Any] | None = None,
        evaluation: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
    ) -> None:
        self.source: Source = open_source(source)
        self.batch_size, self.chunk_size, self.steps = batch_size, chunk_size, steps
        self.memory_budget = parse_bytes(memory_budget)
        self.device, self.transform, self.collate = device, transform, collate
        self.shuffle = shuffle and not evaluation
        self.samples = check_samples(self.source, steps)
        check_fields(self.source.fields)
        self._asked = self._geometry = Geometry(block_samples, window_blocks, lanes)
        self._seed_given, self._seed = seed is not None, resolve_seed(seed)
        self._fingerprint: str | None = None
        self._placed = Course(
            self._order_for,
            topology=partial(current_topology, rank, world_size),
            batch=batch_size,
            drop_last=drop_last,
            chunk=chunk_size,
            limit=None,
            evaluation=evaluation,
            fingerprint=self._data_fingerprint,
        )
        self._placed.replan()  # refuses what cannot be, now and not at the first batch

    @property
    def _course(self) -> Course:
        return self._placed

    def _data_fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = self.source.fingerprint()
        return self._fingerprint

    # -- geometry

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row, all fields."""
        return sum(field.nbytes for field in self.source.fields.values())

    @property
    def threads(self) -> int:
        """Reader threads: the usable cores, or as many reads as the storage likes in flight."""
        return max(2, getattr(self.source, "in_flight", usable_cores()))

    def _demand(self, topology: Topology) -> Demand:
        return Demand(
            self.row_bytes,
            self.steps,
            self.batch_size,
            self.batch_size * topology.world,
            self.threads,
            copies=0 if isinstance(self.source, MappedSource) else 2,
        )

    def _order_for(self, topology: Topology) -> Order:
        if self.batch_size < 1:
            raise PlanError(f"batch_size must be at least 1 sample, got {self.batch_size!r}")
        demand = self._demand(topology)
        lanes = (self._geometry.lanes or topology.world) if self.shuffle else 1
        block = self._geometry.block or self._natural_block()
        window = self._geometry.window or demand.largest_window(
            self.memory_budget, size=self.samples, block=block, lanes=lanes
        )
        order: BlockOrder | StoredOrder
        if self.shuffle:
            order = BlockOrder(self.samples, self._seed, block, max(1, window), lanes)
        else:
            order = StoredOrder(self.samples, self._seed, block=block, window=max(1, window))
        needed = demand.nbytes(block=block, round_samples=order.window_samples * lanes)
        if needed > self.memory_budget:
            raise PlanError(
                f"windows of {max(1, window)} blocks of {block:,} samples need "
                f"{format_bytes(needed)} of buffers, memory_budget is "
                f"{format_bytes(self.memory_budget)}: raise it, or use smaller blocks or batches"
            )
        return order

    def _natural_block(self) -> int:
        """The storage's own chunking; for rollouts so many chunks that little is read twice."""
        natural = min(self.source.block_samples, self.samples)
        if self.steps == 1:
            return natural
        again = -(-(self.steps - 1) // natural)  # chunks beyond its own that a block touches
        return min(natural * max(1, int(again / REREAD_SHARE)), self.samples)

    # -- state

    def load_state_dict(self, state: dict[str, Any], *, allow_changed_data: bool = False) -> None:
        """Go on exactly where a state was taken, from the next ``iter()`` on; takes O(1).

        Block, window and lanes are adopted from it where none were given.
        """
        check_format(state)
        before = self._geometry, self._seed
        try:
            self._adopt(state)
            super().load_state_dict(state, allow_changed_data=allow_changed_data)
        except (PlanError, StateError) as error:
            self._geometry, self._seed = before
            self._placed.replan()
            if isinstance(error, PlanError):
                raise StateError(f"the state does not fit this loader: {error}") from error
            raise

    def _adopt(self, state: Mapping[str, Any]) -> None:
        asked = self._asked
        if self.shuffle and state.get("order") == BlockOrder.kind:
            self._geometry = Geometry(
                asked.block or state.get("block"),
                asked.window or state.get("window"),
                asked.lanes or state.get("lanes"),
            )
        if not self._seed_given and isinstance(state.get("seed"), int):
            self._seed = state["seed"]
        self._placed.replan()

    def set_batch_size(self, batch_size: int) -> None:
        """Another batch size from the next ``iter()`` on; position and geometry stay."""
        order = self._placed.plan.order
        before = self._geometry, self.batch_size
        if isinstance(order, BlockOrder):
            self._geometry = Geometry(order.block, order.window, order.lanes)
        self.batch_size = batch_size
        try:
            super().set_batch_size(batch_size)
        except PlanError:
            self._geometry, self.batch_size = before
            self._placed.replan()
            raise

    # -- executing

    def _open(self, plan: Plan, cursor: Cursor) -> Stream:
        order = plan.order
        assert isinstance(order, BlockOrder | StoredOrder)
        transfer = transfer_to(self.device)
        demand = self._demand(Topology(plan.rank, plan.steps.world))
        slots = Slots(
            {name: stacked(field, self.steps) for name, field in self.source.fields.items()},
            batch=plan.steps.batch,
            count=demand.slots(order.window_samples * order.lanes),
            lent=LENT_BATCHES,
            pin=transfer is not None,
        )
        segments = partial(self._segments, plan, cursor)
        pipeline = Pipeline(
            plan_rounds(plan, order, segments()),
            slots,
            partial(Placer, self.source, slots, block=order.block, steps=self.steps),
            threads=self.threads,
            name="read",
        )
        return BatchStream(
            *(plan, segments, pipeline, slots, transfer),
            transform=self.transform,
            collate=self.collate,
        )

    def _segments(self, plan: Plan, cursor: Cursor) -> Iterator[Segment]:
        """What is delivered: epoch after epoch; for evaluation the same one again."""
        steps, fixed = plan.steps, self._placed.evaluation
        while True:
            left = steps.left_in_chunk if fixed else steps.steps_from
            yield Segment.of(steps, cursor, left(cursor.position))
            cursor = Cursor() if fixed else Cursor(cursor.epoch + 1)

    def describe(self) -> str:
        """One readable page: order, shuffle quality, memory, and why."""
        return describe_stream(self)


def describe_stream(loader: StreamLoader) -> str:
    """The page `StreamLoader.describe` gives."""
    plan, cursor = loader._placed.plan, loader._placed.cursor
    order, steps = plan.order, plan.steps
    assert isinstance(order, BlockOrder | StoredOrder)
    demand = loader._demand(Topology(plan.rank, steps.world))
    needed = demand.nbytes(block=order.block, round_samples=order.window_samples * order.lanes)
    lines = [
        f"StreamLoader over {order.size:,} samples of {loader.source!r}",
        f"  order     {order.kind}, seed {order.seed}, blocks of {order.block:,} samples, "
        f"windows of {order.window:,} blocks, {order.lanes} lanes",
        f"  batches   {steps.count:,} an epoch of {steps.batch} on each of {steps.world} ranks, "
        f"{'the rest dropped' if steps.drop_last else 'the last ones short'}",
        f"  executor  {loader.threads} reader threads",
        f"  memory    {format_bytes(needed)} of a budget of {format_bytes(loader.memory_budget)}",
        f"  cursor    epoch {cursor.epoch}, position {cursor.position:,}, "
        f"{loader.remaining:,} batches to come",
    ]
    return "\n".join(lines)


def stacked(field: Field, steps: int) -> Field:
    """The field of a sample that is ``steps`` consecutive rows."""
    return field if steps == 1 else replace(field, shape=(steps, *field.shape))


def check_samples(source: Source, steps: int) -> int:
    """How many samples of ``steps`` rows a source has, refused where there is none."""
    if steps < 1:
        raise PlanError(f"steps must be at least 1 row, got {steps!r}")
    samples = len(source) - steps + 1
    if samples < 1:
        raise PlanError(f"{len(source)} rows hold no sample of {steps} consecutive rows")
    return samples


def check_fields(fields: Mapping[str, Field]) -> None:
    """Refuse what torch has no tensor for."""
    for name, field in fields.items():
        try:
            torch.from_numpy(np.empty(0, field.dtype))
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"field {name!r} has dtype {field.dtype}, which torch has no tensor for: "
                "convert it, or leave it out with open_source(..., fields=[...])"
            ) from error
        if field.nbytes == 0:
            raise PlanError(f"field {name!r} has samples of no bytes, shape {field.shape}")
