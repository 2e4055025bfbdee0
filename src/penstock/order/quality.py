"""How well an order mixes what is stored together: computed from the plan, before a byte is read.

Samples of one block of storage are often alike: from one recording, one day, one class. In the
worst case they carry the same information. A step of b samples, two of which are from one block
with probability p, is then worth ``b / (1 + (b - 1) * p)`` independent ones.
`ShuffleQuality.mixing` is that number, divided by the same number for a full shuffle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.order.blocks import BlockOrder
from penstock.order.subset import SelectedBlocks


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """Figures of a shuffle, for rounds of usual size.

    Args:
        blocks: Blocks that a rank's batch is drawn from.
        share: Expected share of a batch that is from any one of them.
        full_share: The same in a full shuffle.
        distance: Mean number of positions between two samples that are neighbours in a block.
        full_distance: The same in a full shuffle.
        same_block: Probability that two samples of a step are from one block.
        mixing: The least that a step is worth, relative to a step of a full shuffle: from 0,
            nothing is mixed, to 1.
    """

    blocks: int
    share: float
    full_share: float
    distance: float
    full_distance: float
    same_block: float
    mixing: float


def shuffle_quality(
    order: BlockOrder | SelectedBlocks, batch: int, world: int = 1
) -> ShuffleQuality:
    """Return how well a block order mixes.

    With `SelectedBlocks`, blocks hold different numbers of selected samples; the result is for the
    average number, over all samples, in the block of a sample.

    Args:
        order: The order.
        batch: Samples of a rank's batch.
        world: Number of ranks.

    >>> quality = shuffle_quality(BlockOrder(10_000, seed=1, block=10, window=50), batch=64)
    >>> quality.blocks, round(quality.mixing, 2)
    (50, 0.49)
    """
    lanes_of_rank, block = max(1, order.lanes // world), float(order.block)
    if isinstance(order, SelectedBlocks):
        held = order.held
        window = order.usual_rows
        blocks = max(1, round(window * lanes_of_rank / held.mean()))
        block, full_share = float((held**2).sum() / order.size), 1 / len(held)
    else:
        full_share = min(1.0, block / order.size)
        if order.rounds > 1:
            window = order.rows // order.rounds * order.block  # samples of a lane's window
            blocks = order.rows // order.rounds * lanes_of_rank
        else:  # one round has all samples, also those that do not fill a row of blocks
            window = max(1, order.size // order.lanes)
            blocks = max(1, -(-window * lanes_of_rank // order.block))
    same = _same_block(block, window, order.lanes, batch * world)
    return ShuffleQuality(
        blocks=blocks,
        share=1 / blocks,
        full_share=full_share,
        distance=order.lanes * (window + 1) / 3,
        full_distance=(order.size + 1) / 3,
        same_block=same,
        mixing=_mixing(same, block, order.size, batch * world),
    )


def _same_block(block: float, window: int, lanes: int, whole: int) -> float:
    """Return the probability that two of ``whole`` samples of a step are from one block."""
    if whole < 2 or window < 2:
        return 0.0
    same_lane = max(0.0, (whole / lanes - 1) / (whole - 1))
    return same_lane * min(1.0, (block - 1) / (window - 1))


def _mixing(same_block: float, block: float, size: int, whole: int) -> float:
    full = (min(block, size) - 1) / max(1, size - 1)
    return min(1.0, (1 + (whole - 1) * full) / (1 + (whole - 1) * same_block))


def window_for(mixing: float, *, size: int, block: int, lanes: int, whole: int) -> int:
    """Return the fewest blocks of a lane's window that reach a quality of mixing.

    Args:
        mixing: The quality, from 0 to 1; see `ShuffleQuality`.
        size: Samples of the dataset.
        block: Samples of a block.
        lanes: Lanes of the order.
        whole: Samples of a step over all ranks.

    >>> window_for(0.9, size=10**6, block=100, lanes=1, whole=256)
    2000
    """
    rows = size // block // lanes  # blocks of a lane
    low, high = 1, max(1, rows)
    while low < high:
        middle = (low + high) // 2
        balanced = rows // -(-rows // middle)  # rounds of an order are of equal size
        same = _same_block(block, balanced * block, lanes, whole)
        reached = _mixing(same, block, size, whole) >= mixing
        low, high = (low, middle) if reached else (middle + 1, high)
    return low


def blocks_for(
    mixing: float,
    *,
    size: int,
    block: int,
    lanes: int,
    whole: int,
    fits: Callable[[int, int], bool],
) -> tuple[int, int] | None:
    """Return the largest blocks, and the window of them, that reach a quality; None if none fit.

    Large blocks are read fast; small ones mix well in little memory.

    Args:
        mixing: The quality; see `ShuffleQuality`.
        size: Samples of the dataset.
        block: The largest blocks, such as those of the storage. Halves, quarters and eighths of
            them are tried, too; smaller ones would be read too slowly.
        lanes: Lanes of the order.
        whole: Samples of a step over all ranks.
        fits: Returns whether blocks of a size, and windows of a number of them, fit into memory.
    """
    for part in [block >> halved for halved in range(4) if block >> halved]:
        window = window_for(mixing, size=size, block=part, lanes=lanes, whole=whole)
        if fits(part, window):
            return part, window
    return None
