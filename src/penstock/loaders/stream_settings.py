"""Settings of `StreamLoader`: its arguments, its block geometry, and its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.arguments import a_path, choice, format_bytes, function, real_number, whole_number
from penstock.datasets.mixture import Mixture
from penstock.errors import PlanError, SourceError
from penstock.loaders.composed import InRounds, OrderOptions, round_rows
from penstock.loaders.options import refuse_unknown
from penstock.loaders.plan_settings import OrderRequest
from penstock.order import BlockOrder, Order
from penstock.order.block_rounds import BlockRounds
from penstock.order.blocks import StoredOrder
from penstock.order.subset import Kept, Ranges, SelectedBlocks, SelectedInOrder
from penstock.sources import open_source
from penstock.sources.base import ComposedSource, composed
from penstock.sources.contract import Field, Source, seams_of, varies
from penstock.sources.ragged_rows import ragged_fields
from penstock.sources.verbs import Selected, Stored
from penstock.streaming.budget import (
    LENT_BATCHES,
    Demand,
    ExplainedValue,
    Geometry,
    HeldDemand,
    Resolved,
    Resolver,
    usable_cores,
)
from penstock.streaming.placement import BadBlocks
from penstock.streaming.ragged import RaggedDemand, RaggedInput
from penstock.streaming.stream_input import StreamInput
from penstock.transforms.base import Transform

if TYPE_CHECKING:
    from penstock.loaders.stream import StreamLoader

HELD_EXPANSION = 2  # from this many bytes delivered per byte of rows on, rows are held once
ENOUGH_BLOCKS = 64  # mixing more blocks hardly improves a shuffle
FEWEST_LENT = 2  # the batch in use, and the one that replaces it

ON_ERROR: Final = ("raise", "replace")
_ORDER: Final = (
    "the order is computed from the seed; pass shuffle=, block_samples= or window_blocks= to "
    "change it, or use ChunkedDataLoader, which takes {name}="
)
_PROCESSES: Final = "reader threads do the reading, not worker processes; leave it out"

NOT_OURS: Final[Mapping[str, str]] = {
    "num_workers": "reader threads do the reading; pass threads= for another number of them",
    "prefetch_factor": "pass memory_budget= to bound how much is read ahead",
    "persistent_workers": "reader threads live until close(); leave it out",
    "multiprocessing_context": _PROCESSES,
    "worker_init_fn": _PROCESSES,
    "executor": _PROCESSES,
    "pin_memory": 'batches are page-locked when they go to an accelerator; pass device="cuda"',
    "pin_memory_device": "pass device= for where batches go",
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "order": _ORDER,
    "generator": "pass seed= for the order and for transform",
    "in_order": "batches always come in order; leave it out",
    "limit_batches": "pass chunk_size= for the number of batches of an iteration",
    "dataset": "pass the data as the first argument, source",
    "path": "pass it as the first argument, source",
}


def refuse_arguments(given: Mapping[str, Any], init: Callable[..., None]) -> None:
    """Refuse arguments that `StreamLoader` does not have, with what to pass instead.

    >>> refuse_arguments({"num_workers": 4}, print)
    Traceback (most recent call last):
    ...
    penstock.errors.PlanError: StreamLoader has no num_workers: reader threads do the reading; ...
    """
    for name in given:
        if name in NOT_OURS:
            raise PlanError(f"StreamLoader has no {name}: {NOT_OURS[name].format(name=name)}")
    refuse_unknown("StreamLoader", given, init)


def optional_number(name: str, value: Any, **bounds: Any) -> int | None:
    """Return ``value`` as `whole_number` does; None stays None."""
    return None if value is None else whole_number(name, value, **bounds)


def one_of(
    collate_fn: Callable[[Any], Any] | None, collate: Callable[[Any], Any] | None
) -> Callable[[Any], Any] | None:
    """Return the collate function, passed by either of its names."""
    if collate_fn is not None and collate is not None:
        raise PlanError("collate is another name for collate_fn: pass one of them")
    if collate is not None:
        return function("collate", collate)
    return function("collate_fn", collate_fn)


def bad_blocks(on_error: str, quarantine: str | PathLike[str] | None) -> BadBlocks | None:
    """Return where unreadable blocks are recorded; None if their error is raised."""
    path = None if quarantine is None else a_path("quarantine", quarantine)
    if choice("on_error", on_error, ON_ERROR) == "replace":
        return BadBlocks(path)
    if path is not None:
        raise PlanError('quarantine lists replaced blocks: pass on_error="replace" with it')
    return None


def opened(source: Any, fields: Sequence[str] | None) -> Source:
    """Return the source, opened if necessary."""
    if isinstance(source, Mixture):
        if fields is not None:
            raise PlanError("fields= cannot be used with a Mixture: choose fields of each member")
        return source.joined_source()
    if isinstance(source, Dataset) and not isinstance(source, Source):
        name = type(source).__name__
        raise SourceError(
            f"StreamLoader reads storage block by block, and {name} is a torch Dataset, which "
            "gives single samples: use ChunkedDataLoader(dataset, batch_size), or pass the path "
            "or the arrays that it reads"
        )
    if fields is None and isinstance(source, Source):
        return source
    return open_source(source, fields=fields)


def check_composed(source: Any, options: OrderOptions, *, steps: int, on_error: str) -> None:
    """Refuse arguments that a mixture, weights or epochs of another length exclude."""
    if isinstance(source, Mixture) and steps > 1:
        raise PlanError(f"steps={steps} with a Mixture: pass source.windows({steps}) as members")
    if on_error != "raise" and options.composes(source):
        raise PlanError(
            f"on_error={on_error!r} with a Mixture, weights= or epoch_samples=: only 'raise' is "
            "possible, because blocks are read in parts"
        )


def with_steps(source: Source, steps: int) -> Source:
    """Return the samples: windows of ``steps`` rows, or the rows themselves."""
    samples = source if steps == 1 else composed(source).windows(steps)
    if not len(source):
        raise PlanError(
            f"there are no samples in {brief(source)}: it is empty, or its windows or patches are "
            "larger than the data"
        )
    if not len(samples):
        raise PlanError(
            f"no {steps} consecutive rows in {brief(source)}, which has {len(source)} rows in "
            f"{len(seams_of(source)) + 1} pieces: pass a smaller steps"
        )
    return samples


def stored_selection(samples: Source, *, plain: bool) -> tuple[Source, Kept | None]:
    """Return the source to read, and which of its samples are delivered; None for all of them.

    Selected samples are read in the blocks of their storage, each once. Not where blocks are held
    (samples of different lengths, or that overlap), and not for one range, which is as good as a
    source of its own.

    Args:
        samples: What is delivered.
        plain: Whether it is a plain shuffle or sequence of them, whose errors are raised.
    """
    layout = samples.layout if isinstance(samples, ComposedSource) else None
    if not plain or not isinstance(layout, Selected) or isinstance(layout.parent, Selected):
        return samples, None
    kept, parent = layout.kept, layout.parent
    ragged = any(field.ragged for field in samples.fields.values())
    if ragged or layout.shared or (isinstance(kept, Ranges) and len(kept.starts) == 1):
        return samples, None
    return parent.source if isinstance(parent, Stored) else ComposedSource(parent), kept


def stream_input(source: Source, budget: int) -> StreamInput:
    """Return a source as a stream reads it.

    Args:
        source: Any source.
        budget: Bytes for all buffers together.
    """
    kind = RaggedInput if ragged_fields(source, source.fields) else StreamInput
    return kind(source, budget)


def check_transform(transform: object, fields: Mapping[str, Field]) -> None:
    """Refuse a transform of one array for a source that has several."""
    ragged = any(field.ragged for field in fields.values())
    one_array = isinstance(transform, Transform) and not transform.takes_fields
    if one_array and (ragged or fields.keys() != {""}):
        raise PlanError(
            f"{type(transform).__name__} changes one array, the source has fields {list(fields)}: "
            "use a function transform(batch, rng) that applies it to the field it is for"
        )


def checked_mixing(mixing: float | None, asked: Geometry) -> float | None:
    """Return the requested quality of the shuffle; refuse it together with sizes."""
    if mixing is not None and (asked.block, asked.window) != (None, None):
        raise PlanError(
            f"mixing={mixing!r} chooses block_samples and window_blocks: leave these out, or mixing"
        )
    return None if mixing is None else real_number("mixing", mixing, minimum=0.001, maximum=0.999)


def check_fields(fields: Mapping[str, Field]) -> None:
    """Refuse a dtype that torch has no tensor for."""
    for name, field in fields.items():
        try:
            torch.from_numpy(np.empty(0, field.dtype))
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"field {name!r} has dtype {field.dtype}, which torch has no tensor for: "
                "convert it, or name the other fields with fields=[...]"
            ) from error
        if field.nbytes == 0:
            raise PlanError(f"field {name!r} has samples of 0 bytes, shape {field.shape}")


def brief(source: Source) -> str:
    """Return a source in at most 80 characters, for messages.

    >>> brief(open_source(np.arange(3)))
    'MemorySource(3 samples)'
    """
    text = repr(source)
    return text if len(text) <= 80 else f"{text[:37]} ... {text[-38:]}"  # verbs come last


# -- blocks, windows and lanes


@dataclass(slots=True)
class StreamOrders:
    """The order factory of a `StreamLoader`: chooses blocks, windows and lanes for the ranks.

    Not part of the loader: the position holds this, and a reference from it to the loader would be
    a cycle, so that a dropped loader would keep its threads until garbage is collected.

    Args:
        source: What is read.
        samples: Number of samples.
        shuffle: Whether blocks and samples are shuffled.
        drop_last: Whether incomplete batches are dropped.
        memory_budget: Bytes of all buffers together.
        asked: The geometry that was passed in.
        given_threads: Reader threads that were passed in, or None.
        adopted: The geometry of a state that was loaded.
        composed: Makes the order of a mixture, of weights, or of epochs of another length; None
            for a plain shuffle or sequence.
        mixing: The quality of the shuffle to choose blocks and windows for; None for what the
            budget allows.
        selected: Which samples of ``source`` are delivered; None for all of them.
    """

    source: StreamInput
    samples: int
    shuffle: bool
    drop_last: bool
    memory_budget: int
    asked: Geometry
    given_threads: int | None
    adopted: Geometry
    composed: InRounds | None = None
    mixing: float | None = None
    selected: Kept | None = None

    def __call__(self, request: OrderRequest) -> Order:
        """Return the order; refuse a geometry that does not fit the memory budget."""
        resolver = self.resolver(request.batch_size, request.world_size)
        asked = self.chosen(resolver, request.world_size)
        if isinstance(self.source, RaggedInput):
            found = resolver.resolve(asked, self.adopted, ranks=request.world_size)
            needed = resolver.needed(found)
            self.source.sizes.check(self.memory_budget, found.block.value, needed)
        resolved = resolver.check(asked, self.adopted, ranks=request.world_size)
        block, window, lanes = (choice.value for choice in resolved)
        if self.composed is not None:
            order = self.composed.make(request, block, window, lanes)
            order.by_pass = varies(self.source.source)
            return order
        if self.selected is not None:
            if not self.shuffle:
                return SelectedInOrder(self.selected, request.seed, block, window)
            return SelectedBlocks(self.selected, request.seed, block, window, lanes)
        if self.shuffle:
            return BlockOrder(self.samples, request.seed, block, window, lanes)
        return StoredOrder(self.samples, request.seed, block=block, window=window)

    @property
    def threads(self) -> int:
        """Reader threads: those passed in, or what the storage needs, or the usable cores."""
        found = getattr(self.source.source, "in_flight", None) or usable_cores()
        return self.given_threads or max(2, found)

    def resolver(self, batch: int, world: int) -> Resolver:
        """Return what chooses the geometry, with the demand of the way that samples are held.

        Samples that overlap at least `HELD_EXPANSION` times are gathered from rows that are held
        once. It takes a second copy, so they are written straight to their batches if that mixes
        all blocks, or `ENOUGH_BLOCKS`, within the budget.
        """
        # a composed order also holds sample, pass and row of everything in three rounds
        extra = 0 if self.composed is None else 36
        sizes, drop = (batch, batch * world, self.threads, extra), self.drop_last
        if isinstance(self.source, RaggedInput):
            blocks = None if self.composed is None else self.composed.blocks
            held = (LENT_BATCHES, self.source.numbers_per_sample, drop, blocks)
            return self._resolver(RaggedDemand(self.source, *sizes, *held), world)
        slots = self._resolver(Demand(self.source, *sizes), world)
        if self.source.rows is None or self.composed is not None or self.selected is not None:
            return slots
        room = self.memory_budget // 4 // (batch * self.source.sample_bytes)
        lent = max(FEWEST_LENT, min(LENT_BATCHES, room - 1))
        numbers = sum(self.source.rows.columns.values())
        demand = HeldDemand(self.source, *sizes, lent, numbers, drop_last=drop)
        rows = self._resolver(demand, world)
        block = min(self.samples, rows.resolve(self.asked, self.adopted, ranks=world).block.value)
        if block * self.source.sample_bytes < HELD_EXPANSION * self.source.cost(block).nbytes:
            return slots
        found = slots.resolve(self.asked, self.adopted, ranks=world)
        whole = self.samples // min(self.samples, found.block.value) // found.lanes.value
        enough = found.window.value >= min(ENOUGH_BLOCKS, max(1, whole))
        return slots if enough and slots.needed(found) <= self.memory_budget else rows

    def _resolver(self, demand: Demand, world: int) -> Resolver:
        def again(budget: int, asked: Geometry, batch: int) -> Resolver:
            source = self.source.with_budget(budget)
            other = replace(self, source=source, memory_budget=budget, asked=asked)
            return other.resolver(batch, world)

        natural, rounds = self.source.block_samples, None
        if self.composed is not None:
            rounds = partial(round_rows, self.composed.most, 0)
        elif self.selected is not None:
            rounds = partial(round_rows, self.samples, 1)  # a round ends where a block does
            if not self.source.decodes:  # blocks need not be chunks: as many samples as of all
                natural = min(self.selected.size, natural * self.selected.size // self.samples)
        samples = self.samples if self.selected is None else self.selected.size
        budget, in_order = self.memory_budget, not self.shuffle
        return Resolver(demand, samples, natural, budget, again, in_order, rounds)

    def resolve(self, batch: int, world: int) -> Resolved:
        """Return blocks, windows and lanes, each with its reason."""
        resolver = self.resolver(batch, world)
        return resolver.resolve(self.chosen(resolver, world), self.adopted, ranks=world)

    def chosen(self, resolver: Resolver, world: int) -> Geometry:
        """Return the geometry that was passed in, or the one that mixes as well as was asked."""
        if self.mixing is None or not self.shuffle or self.adopted != Geometry():
            return self.asked
        from penstock.order.quality import blocks_for, shuffle_quality  # here: few ask for it

        found = resolver.resolve(self.asked, self.adopted, ranks=world)
        lanes, whole = found.lanes, resolver.demand.whole

        def fits(block: int, window: int) -> bool:
            size = ExplainedValue(block, ""), ExplainedValue(window, ""), lanes
            return resolver.needed(Resolved(*size)) <= self.memory_budget

        sizes = {"size": self.samples, "lanes": lanes.value, "whole": whole}
        largest = min(found.block.value, self.samples)
        best = blocks_for(self.mixing, block=largest, fits=fits, **sizes)
        if best is None:
            order = BlockOrder(self.samples, 0, *(each.value for each in found))
            reached = shuffle_quality(order, whole // world, world).mixing
            raise PlanError(
                f"mixing={self.mixing:g} does not fit into memory_budget="
                f"{format_bytes(self.memory_budget)}, which allows {reached:.2f} with blocks of "
                f"{found.block.value:,} samples: raise memory_budget, or ask for less"
            )
        return Geometry(*best, lanes.value)


# -- description


def page(loader: StreamLoader) -> str:
    """Return the page of `StreamLoader.describe`."""
    plan, position, geometry = loader.plan, loader.position, loader.geometry
    cursor = position.skips.to_order(position.cursor)
    steps = plan.steps
    lines = [
        f"StreamLoader over {loader.samples:,} samples of {loader.source!r}",
        f"  order     {plan.order.kind}, seed {loader.seed}",
        f"  blocks    {geometry.block.value:,} samples ({geometry.block.why})",
        f"  windows   {geometry.window.value:,} blocks ({geometry.window.why})",
        f"  lanes     {geometry.lanes.value:,} ({geometry.lanes.why})",
        f"  shuffle   {_shuffle(loader)}",
        f"  batches   {steps.count:,} an epoch of {steps.batch} on each of {steps.world} ranks, "
        f"{'the rest dropped' if steps.drop_last else 'the last ones short'}",
        f"  executor  {loader.threads} reader threads",
        f"  decoding  {_decoding(loader)}",
        f"  memory    {_memory(loader)}",
        *position.skipped_lines(),
        f"  cursor    epoch {cursor.epoch}, position {cursor.position:,}, "
        f"{loader.remaining:,} batches to come",
        *(f"  warning   {warning}" for warning in warnings_of(loader)),
    ]
    return "\n".join(lines)


def _shuffle(loader: StreamLoader) -> str:
    order, steps = loader.plan.order, loader.plan.steps
    if isinstance(order, BlockRounds):
        shares = loader.mixture.shares if loader.mixture is not None else {}
        text = "".join(f", {name} {share:.1%}" for name, share in shares.items())
        if not loader.shuffle:
            return f"none: samples come in storage order{text}"
        return f"within {order.window_samples:,} samples of each lane{text}"
    if not loader.shuffle or not isinstance(order, BlockOrder | SelectedBlocks):
        return "none: samples come in storage order"
    from penstock.order.quality import shuffle_quality  # here: only for this page

    found = shuffle_quality(order, steps.batch, steps.world)
    return (
        f"a batch is drawn from {found.blocks:,} blocks: {found.share:.2%} of it from any one of "
        f"them, on average ({found.full_share:.2%} in a full shuffle)\n"
        f"  mixing    {found.mixing:.2f} of a full shuffle; neighbours come "
        f"{found.distance:,.0f} positions apart ({found.full_distance:,.0f})"
    )


def _memory(loader: StreamLoader) -> str:
    used, budget = format_bytes(loader.buffer_bytes), format_bytes(loader.memory_budget)
    text = f"{used} of buffers, of a budget of {budget}"
    if loader.holds_rows:
        text += ": rows are held once, batches are gathered from them"
    return text


def _decoding(loader: StreamLoader) -> str:
    """Return how many bytes are decoded per byte delivered, and why."""
    source = loader.stream_input
    stored = len(source.source)  # more than are delivered if samples are selected
    block = min(loader.block_samples, stored)
    if not source.decodes:
        return "none: storage is mapped"
    decoded, blocks, order = source.decoded_in_all(block), -(-stored // block), loader.plan.order
    own = source.cost(block).own_bytes * (stored / block if source.rows is None else blocks)
    again = decoded / own
    # blocks without a selected sample are not read
    read = len(order.held) / blocks if isinstance(order, SelectedBlocks) else 1
    each = decoded * read / (loader.samples * source.sample_bytes)
    text = f"{each:.3g} bytes per byte delivered"
    text += f", {again:.3g} per byte of different rows: "
    if again < 1.01:
        return text + "every chunk once"
    text += f"a block of {block:,} samples has parts of chunks that other blocks need too"
    if source.decodes_first:  # how much depends on where the parts are
        text = f"at most {text}, which zstd decodes only up to the last needed byte"
    return text


def warnings_of(loader: StreamLoader) -> list[str]:
    """Return one sentence for each setting that makes the stream slow or its shuffle poor."""
    found = []
    source = loader.stream_input
    if source.has_tiny_chunks and source.block_samples == 1 and loader.samples > 1:
        found.append(
            "storage chunks hold one sample each, so that every sample needs its own read: "
            "write it with more samples per chunk"
        )
    order = loader.plan.order
    chosen = loader.geometry.window.why == "the budget"
    if isinstance(order, BlockOrder) and chosen and order.window == 1:
        found.append(
            f"memory_budget {format_bytes(loader.memory_budget)} allows only one block per window, "
            "so that a batch comes from few blocks: raise it, or use smaller block_samples"
        )
    return found
