"""What a stream says about itself: one readable page, and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.order import BlockOrder
from penstock.sizes import format_bytes

if TYPE_CHECKING:
    from penstock.loaders.stream import StreamLoader


def page(loader: StreamLoader) -> str:
    """The page `StreamLoader.describe` gives."""
    plan, cursor, geometry = loader._placed.plan, loader._placed.cursor, loader.geometry
    steps = plan.steps
    used, budget = format_bytes(loader.buffer_bytes), format_bytes(loader.memory_budget)
    lines = [
        f"StreamLoader over {loader.samples:,} samples of {loader.source!r}",
        f"  order     {plan.order.kind}, seed {loader.seed}",
        f"  blocks    {geometry.block.value:,} samples ({geometry.block.why})",
        f"  windows   {geometry.window.value:,} blocks ({geometry.window.why})",
        f"  lanes     {geometry.lanes.value:,} ({geometry.lanes.why})",
        f"  shuffle   {_shuffle(loader)}",
        f"  batches   {steps.count:,} an epoch of {steps.batch} on each of {steps.world} ranks, "
        f"{'the rest dropped' if steps.drop_last else 'the last ones short'}",
        *_rollouts(loader),
        f"  executor  {loader.threads} reader threads",
        f"  memory    {used} of buffers, of a budget of {budget}",
        f"  cursor    epoch {cursor.epoch}, position {cursor.position:,}, "
        f"{loader.remaining:,} batches to come",
        *(f"  warning   {warning}" for warning in warnings_of(loader)),
    ]
    return "\n".join(lines)


def blocks_mixed(order: BlockOrder, world: int) -> int:
    """Blocks that a rank's batch is drawn from, in a round of usual size.

    >>> blocks_mixed(BlockOrder(1000, seed=1, block=10, window=16), world=1)
    14
    """
    lanes = max(1, order.lanes // world)
    if not order.rows:  # everything is leftover: contiguous slices of a few blocks
        return max(1, -(-order.left * lanes // order.lanes // order.block))
    return order.rows // order.rounds * lanes


def _shuffle(loader: StreamLoader) -> str:
    order = loader._placed.plan.order
    if not isinstance(order, BlockOrder):
        return "none: samples come as they lie in storage"
    mixed = blocks_mixed(order, loader.world_size)
    full = min(1.0, order.block / order.size)
    return (
        f"a batch is drawn from {mixed:,} blocks: {1 / mixed:.2%} of it from any one of them, "
        f"on average ({full:.2%} in a shuffle of everything)"
    )


def _rollouts(loader: StreamLoader) -> Iterator[str]:
    if loader.steps == 1:
        return
    block, after = min(loader.block_samples, loader.samples), loader.steps - 1
    text = f"{loader.steps} rows a sample: a block of {block:,} reads {after:,} more, "
    chunk = loader.source.block_samples
    if loader._chunk_rows and block % chunk == 0:
        again = -(-after // chunk)
        text += f"{again / (block // chunk):.3g} of the storage's chunks are decoded once more"
    else:
        text += f"{after / block:.3g} of the rows are read once more"
    yield f"  rollouts  {text}"


def warnings_of(loader: StreamLoader) -> list[str]:
    """What makes this stream slow, or its shuffle poor: a sentence each."""
    found = []
    if loader._chunk_rows == 1 and loader.samples > 1:
        found.append(
            "storage chunks hold one sample each, so that every sample is a read of its own: "
            "write it with more samples a chunk"
        )
    order = loader._placed.plan.order
    chosen = loader.geometry.window.why == "the budget"
    if isinstance(order, BlockOrder) and chosen and order.window == 1:
        found.append(
            f"memory_budget {format_bytes(loader.memory_budget)} allows only one block a window, "
            "so that a batch comes from few blocks: raise it, or use smaller block_samples"
        )
    return found
