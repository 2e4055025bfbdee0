"""Shuffled batches straight from storage."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy.typing as npt
import torch

from penstock.arguments import (
    flag,
    format_bytes,
    function,
    parse_bytes,
    real_number,
    size_text,
    whole_number,
)
from penstock.errors import PlanError, StateError
from penstock.loaders.base import Batch, Stream
from penstock.loaders.chunk_schedule import ChunkSize, chunk_schedule
from penstock.loaders.composed import ComposedOrders, OrderOptions
from penstock.loaders.options import MOST_READERS, check_tune
from penstock.loaders.position import Position
from penstock.loaders.stream_settings import (
    StreamOrders,
    bad_blocks,
    brief,
    check_composed,
    check_fields,
    check_transform,
    checked_mixing,
    one_of,
    opened,
    optional_number,
    page,
    refuse_arguments,
    stored_selection,
    stream_input,
    warnings_of,
    with_steps,
)
from penstock.loaders.torch_loader import RankSampler, TorchLoader
from penstock.order import BlockOrder, Cursor, Order, Plan, StoredOrder
from penstock.order.state import check_format
from penstock.ranks import Seed, current_topology
from penstock.sources.contract import SourceLike, varies
from penstock.streaming.budget import Demand, Geometry, HeldDemand, Resolved, Resolver
from penstock.streaming.buffers import BatchBuffers, SlotTable
from penstock.streaming.held import HeldBlocks, HeldReader, HeldTable
from penstock.streaming.held_rows import ComposedReader, HeldRows
from penstock.streaming.pipeline import BatchStream, BatchTransform, check_device, transfer_to
from penstock.streaming.placement import BlockReplacement, SlotReader
from penstock.streaming.planner import Segment, WindowedOrder, plan_parts
from penstock.streaming.ragged import RaggedBlocks, RaggedDemand
from penstock.streaming.readers import AnnouncedReader, BatchMemory, BlockReader, ReaderPool

log = logging.getLogger("penstock")


class StreamLoader(ComposedOrders[Batch], TorchLoader):  # type: ignore[misc]
    """Shuffled batches straight from storage, at storage speed.

    Threads read blocks of the dataset ahead, and batches are drawn from several blocks at a time.
    Memory stays within a budget, however large the data. As with every loader, a state resumes
    exactly on any number of ranks, and `samples_at` returns the samples of a batch.

    A source with one unnamed array gives tensors; named fields give a dict of tensors.

    Args:
        source: A `Source`, or anything `open_source` opens: a path, a URL, arrays. Or a `Mixture`
            of such members.
        batch_size: Samples of this rank's batch.
        fields: Names of the fields to read, for `open_source`; None for all of them.
        block_samples: Consecutive samples read together; defaults to the storage's chunking.
        window_blocks: Blocks that a lane mixes; defaults to what the budget allows.
        chunk_size: Batches of a chunk, or sizes that change, as for `ChunkedDataLoader`; None for
            the whole epoch.
        shuffle: False reads the samples as they are stored.
        seed: Seed of the shuffle and of ``transform``; None draws one and logs it.
        drop_last: Drop the last batch of an epoch if it is not full on every rank.
        steps: Consecutive rows a sample is made of (rollouts): ``source.windows(steps)``.
        device: Where batches go; a copy overlaps the step before. None leaves them on the CPU.
        memory_budget: Hard bound on the buffers and their bookkeeping: bytes, or a text such as
            ``"1GB"``.
        transform: ``transform(batch, rng)``: the whole batch, and a keyed generator. A
            `Transform` changes each sample by a key of (seed, epoch, sample) instead.
        collate_fn: ``collate_fn(batch)``: called with the whole batch last.
        evaluation: Every ``iter()`` is the same epoch from its start, in order, nothing dropped.
        rank: This rank; pass it together with ``world_size``. By default both are those of
            ``torch.distributed``, or 0 of 1.
        world_size: Number of ranks.
        lanes: Independent readers' shares of the order; defaults to the world size.
        mixing: Chooses blocks and windows for a quality of the shuffle, from 0 to 1, instead of the
            largest windows: the least that a step is worth, relative to a step of a full shuffle.
            See `ShuffleQuality`.
        threads: Reader threads; defaults to the usable cores, or to what remote storage needs.
        tune: ``"online"`` changes the number of reader threads while the loader is used, within
            ``memory_budget``, if batches are then delivered faster; it changes no batch.
        timeout: Seconds to wait for a batch; then a `WorkerError` names the read that hangs. 0
            for no limit.
        collate: Another name for ``collate_fn``.
        on_error: ``"raise"``: a block that cannot be read is an error. ``"replace"``: the rows of
            another block replace it, the same in every run and resume, with a warning.
        quarantine: A file that lists replaced blocks, one JSON object per line.
        weights: One number per sample: in every epoch, a sample is delivered
            ``epoch_samples * weight / sum(weights)`` times, rounded up or down. `set_weights`
            changes them.
        epoch_samples: Samples delivered per epoch; None for as many as there are. Without weights,
            the next epoch continues where this one ended.

    >>> loader = StreamLoader(torch.arange(1000.0), batch_size=100)
    >>> with loader:
    ...     seen = torch.cat(list(loader))
    >>> bool((seen.sort().values == torch.arange(1000)).all())
    True
    """

    partition_samples: int | None = None  # of what ``source`` is a fixed part of, for reports

    def __init__(
        self,
        source: SourceLike,
        batch_size: int,
        *,
        fields: Sequence[str] | None = None,
        block_samples: int | None = None,
        window_blocks: int | None = None,
        chunk_size: ChunkSize | None = None,
        shuffle: bool = True,
        seed: Seed | int | None = 42,
        drop_last: bool = True,
        steps: int = 1,
        device: torch.device | str | None = None,
        memory_budget: int | str = "1GB",
        transform: BatchTransform | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        evaluation: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
        mixing: float | None = None,
        threads: int | None = None,
        tune: str | None = None,
        timeout: float = 0,
        collate: Callable[[Any], Any] | None = None,
        on_error: str = "raise",
        quarantine: str | os.PathLike[str] | None = None,
        weights: npt.ArrayLike | None = None,
        epoch_samples: int | None = None,
        **not_ours: Any,
    ) -> None:
        refuse_arguments(not_ours, StreamLoader.__init__)
        batch_size = whole_number("batch_size", batch_size, minimum=1, unit="sample")
        chunks = chunk_schedule(chunk_size)
        self.steps = whole_number("steps", steps, minimum=1, unit="row")
        self.timeout = real_number("timeout", timeout, minimum=0)
        self.memory_budget = parse_bytes(memory_budget, "memory_budget")
        self.device, self.transform = check_device(device), function("transform", transform)
        self.collate_fn = one_of(collate_fn, collate)  # type: ignore[assignment]  # None is none
        self.evaluation = flag("evaluation", evaluation)
        self.shuffle = flag("shuffle", shuffle) and not evaluation
        self.drop_last = flag("drop_last", drop_last) and not evaluation
        self._bad_blocks = bad_blocks(on_error, quarantine)
        threads = optional_number("threads", threads, minimum=1)
        self._online = check_tune(tune)
        asked = Geometry(block_samples, window_blocks, lanes)
        mixing = checked_mixing(mixing, asked)
        rank = optional_number("rank", rank, minimum=0)
        world_size = optional_number("world_size", world_size, minimum=1)
        drawn = Seed.of(seed)
        chosen = OrderOptions(weights, epoch_samples)
        check_composed(source, chosen, steps=self.steps, on_error=on_error)
        self.source = opened(source, fields)
        samples = with_steps(self.source, self.steps)
        self.samples = len(samples)
        check_fields(samples.fields)
        check_transform(transform, samples.fields)
        composed = chosen.stored(source, self.samples, self.shuffle)
        plain = composed is None and self._bad_blocks is None
        stored, selected = stored_selection(samples, plain=plain)
        self.stream_input = stream_input(stored, self.memory_budget)
        if composed is not None:
            self._remember(source, composed.weights)
        self._slots: BatchBuffers | None = None
        self._held: HeldRows | None = None
        self._orders: StreamOrders = StreamOrders(
            source=self.stream_input,
            samples=self.samples,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            memory_budget=self.memory_budget,
            asked=asked,
            given_threads=threads,
            adopted=Geometry(),
            composed=composed,
            mixing=mixing,
            selected=selected,
        )
        self._position = Position(
            self._orders,
            samples=self.samples,
            topology=partial(current_topology, rank, world_size),
            batch=batch_size,
            drop_last=drop_last,
            chunk=chunks,
            limit=None,
            evaluation=evaluation,
            fingerprint=self.source.fingerprint(),  # now: a state must not need storage later
            seed=drawn,
        )
        sampler = RankSampler(self.source, self._position)
        self._present(self.source, batch_size, sampler, drop_last=self.drop_last)
        for warning in warnings_of(self):
            log.warning("%s", warning)

    @property
    def position(self) -> Position:
        """The plan and the position in it."""
        if self._position.live is None:
            self._follow_stages(self._position)
        return self._position

    # -- settings in use

    @property
    def batch_size(self) -> int:
        """Samples of this rank's batch."""
        return self._position.batch

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        """Do nothing: torch's constructor sets it."""

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether accelerate's ``save_state`` saves the position of this loader."""
        return not self.evaluation

    @property
    def seed(self) -> int:
        """The seed in use: passed in, drawn at random, or restored from a state."""
        return self._position.seed.value

    @property
    def rank(self) -> int:
        """This rank."""
        return self._position.plan.rank

    @property
    def world_size(self) -> int:
        """Number of ranks now."""
        return self._position.plan.steps.world

    @property
    def block_samples(self) -> int:
        """Consecutive samples read together."""
        return self.geometry.block.value

    @property
    def window_blocks(self) -> int:
        """Blocks that a lane mixes."""
        return self.geometry.window.value

    @property
    def lanes(self) -> int:
        """Independent readers' shares of the order."""
        return self.geometry.lanes.value

    @property
    def geometry(self) -> Resolved:
        """Blocks, windows and lanes, each with its reason."""
        return self._orders.resolve(self.batch_size, self.world_size)

    @property
    def threads(self) -> int:
        """Reader threads: those passed in, or what the storage needs, or the usable cores."""
        return self._orders.threads

    @property
    def chunk_rows(self) -> int:
        """Rows that a read decodes together, of the widest field; 0 where none are decoded."""
        return self.stream_input.chunk_rows

    @property
    def holds_rows(self) -> bool:
        """Whether rows are held once, and batches are gathered from them."""
        return isinstance(self._resolver.demand, HeldDemand)

    @property
    def collate(self) -> Callable[[Any], Any] | None:
        """Another name for ``collate_fn``."""
        return self.collate_fn

    @property
    def buffer_bytes(self) -> int:
        """Memory of all buffers and their bookkeeping, within ``memory_budget``."""
        return self._resolver.needed(self.geometry)

    @property
    def _resolver(self) -> Resolver:
        return self._orders.resolver(self.batch_size, self.world_size)

    # -- state

    def load_state_dict(
        self, state_dict: dict[str, Any], *, allow_changed_data: bool = False
    ) -> None:
        """Continue exactly where a state was taken, from the next ``iter()`` on; takes O(1).

        Block, window and lanes are taken from the state unless they were passed in.

        Args:
            state_dict: What `state_dict` returned.
            allow_changed_data: Accept a state whose data had another fingerprint.
        """
        check_format(state_dict)
        try:
            with self._undone_if_refused():
                if self.shuffle and state_dict.get("order") == self._position.plan.order.kind:
                    names = ("block", "window", "lanes")
                    self._orders.adopted = Geometry(*(state_dict.get(name) for name in names))
                    self._position.rebuild_plan()
                self._adopt_weights(state_dict)
                super().load_state_dict(state_dict, allow_changed_data=allow_changed_data)
        except PlanError as error:
            raise StateError(f"the state does not fit this loader: {error}") from error

    def set_batch_size(self, batch_size: int) -> None:
        """Use another batch size from the next ``iter()`` on; position and geometry stay.

        Args:
            batch_size: Samples of this rank's batch.
        """
        with self._undone_if_refused():
            self._orders.adopted = Geometry(self.block_samples, self.window_blocks, self.lanes)
            super().set_batch_size(batch_size)
        self.batch_sampler.batch_size = self.batch_size  # type: ignore[union-attr]

    # -- executing

    def _open(self, plan: Plan, cursor: Cursor) -> Stream:
        order, transfer = plan.order, transfer_to(self.device)
        assert isinstance(order, WindowedOrder)
        segments = partial(segments_of, plan, cursor, fixed=self.evaluation)
        source = self.stream_input
        bad, block = self._bad_blocks, min(order.block, len(source.source))
        replacement = None
        if bad is not None:
            assert isinstance(order, BlockOrder | StoredOrder)
            replacement = BlockReplacement(order, bad)
        memory, reader = self._memory(plan, block, replacement, pin=transfer is not None)
        if varies(source.source):
            reader = partial(AnnouncedReader, reader, order.seed)
        readers = ReaderPool(
            plan_parts(plan, order, segments()),
            memory,
            reader,
            threads=self.threads if self._tuner is None else self._tuner.readers,
            what=brief(self.source),
            timeout=self.timeout,
        )
        return BatchStream(
            *(plan, segments, readers, source.source.fields, transfer),
            transform=self.transform,
            collate=self.collate_fn,
        )

    def _reader_limits(self, batch: Any) -> tuple[int, int]:
        resolver, geometry = self._resolver, self.geometry
        for most in range(MOST_READERS, self.threads, -1):
            demand = replace(resolver.demand, threads=most)
            if replace(resolver, demand=demand).needed(geometry) <= self.memory_budget:
                return self.threads, most
        return self.threads, self.threads

    def _memory(
        self, plan: Plan, block: int, replacement: BlockReplacement | None, *, pin: bool
    ) -> tuple[BatchMemory, Callable[[], BlockReader]]:
        """Return the memory of blocks and batches, and a function that makes a thread's reader."""
        order, source = plan.order, self.stream_input
        assert isinstance(order, WindowedOrder)
        demand = self._orders.resolver(plan.steps.batch, plan.steps.world).demand
        held: HeldBlocks
        if isinstance(demand, HeldDemand):
            if any((stop - start) % order.lanes for _, start, stop in plan.skips.ranges):
                demand = replace(demand, drop_last=False)  # a rank reads other lanes, too
                needed = demand.buffers(block, round_samples(order), order.lanes)
                if needed > self.memory_budget:
                    raise PlanError(
                        f"after skipping {plan.skips.ranges}, a rank reads all {order.lanes} lanes "
                        f"and needs {format_bytes(needed)} of buffers: skip a multiple of "
                        f"{order.lanes} positions, or pass block_samples={order.block}, "
                        f'window_blocks={order.window}, memory_budget="{size_text(needed)}"'
                    )
            places = demand.places(block, round_samples(order), order.lanes)
            if isinstance(demand, RaggedDemand):
                held = RaggedBlocks(source.source, block=block, places=places, pin=pin)
            else:
                held = self._hold(self._reserve(plan, demand, pin=pin), block, places, order.seed)
            return HeldTable(held, plan.steps.batch), partial(HeldReader, held, replacement)
        slots = self._reserve(plan, demand, pin=pin)
        if source.rows is None:
            read = partial(SlotReader, source.source, slots, block=block, replacement=replacement)
            return SlotTable(slots), read
        scratch = partial(HeldRows, source.rows, slots, block=block, places=1, seed=order.seed)
        return SlotTable(slots), partial(ComposedReader, scratch, replacement)

    def _reserve(self, plan: Plan, demand: Demand, *, pin: bool) -> BatchBuffers:
        """Return memory for the batches: that of the last stream if it fits."""
        batch, slots = plan.steps.batch, self._slots
        count = demand.slots(round_samples(plan.order))
        if slots is None or not slots.is_reusable or (slots.batch, slots.count) != (batch, count):
            self._slots = self._held = slots = None  # freed before new memory is allocated
            self._slots = slots = BatchBuffers(
                self.stream_input.source.fields, batch=batch, count=count, lent=demand.lent, pin=pin
            )
        return slots

    def _hold(self, slots: BatchBuffers, block: int, places: int, seed: int) -> HeldRows:
        """Return memory for the rows of blocks: that of the last stream if it fits."""
        held = self._held
        wanted = (slots, block, places, seed)
        if held is None or not held.is_reusable or held.made_for != wanted:
            self._held = held = None
            assert self.stream_input.rows is not None
            rows = self.stream_input.rows
            self._held = held = HeldRows(rows, slots, block=block, places=places, seed=seed)
        return held

    def peek(self) -> Batch:
        """Return the batch the next ``iter()`` begins with; what was read ahead is read again."""
        self._drop_stream()  # its buffers use the whole budget
        return super().peek()

    def close(self) -> None:
        """End all threads and free the buffers; batches stay valid. It may be iterated again."""
        super().close()
        slots, self._slots, self._held = self._slots, None, None
        if slots is not None:
            slots.release_pages()
        self.stream_input.drop()

    def describe(self) -> str:
        """Return one readable page: order, quality of the shuffle, memory, and the reasons."""
        return page(self)


def segments_of(plan: Plan, cursor: Cursor, *, fixed: bool) -> Iterator[Segment]:
    """Yield the epochs to deliver; for evaluation (``fixed``) the same one repeatedly.

    Not a method: threads hold this, and would keep the loader alive.
    """
    while True:
        steps = plan.steps.of(cursor.epoch)
        left = steps.left_in_chunk if fixed else steps.steps_from
        yield Segment.of(steps, cursor, left(cursor.position))
        cursor = Cursor() if fixed else Cursor(cursor.epoch + 1).normal(plan.steps)


def round_samples(order: Order) -> int:
    """Return the samples of a round of windows over all lanes."""
    assert isinstance(order, WindowedOrder)
    return order.window_samples * order.lanes
