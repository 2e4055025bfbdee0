"""What the laws of composed orders share."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

import numpy as np
from hypothesis import strategies as st

from penstock.order import Indices, Order, Steps
from penstock.order.block_rounds import BlockRounds

seeds = st.integers(0, 2**64 - 1)
DTYPES = (np.int64, np.int32, np.uint64, np.uint16)


def one(order: Order, epoch: int = 0) -> Indices:
    """All samples of an epoch."""
    return order.at(epoch, np.arange(order.size))


def feasible(size: int, batch: int, world: int, drop: bool) -> bool:
    return size >= batch * world if drop else size >= world and not (batch == 1 and size % world)


def assert_rounds_are_read(order: BlockRounds, epoch: int) -> None:
    """What every lane reads for a round is what it delivers, each block in one span."""
    samples, seen = one(order, epoch), []
    for k in range(order.rounds):
        begin, end = order.round_start(epoch, k), order.round_start(epoch, k + 1)
        assert order.round_of(epoch, begin) == order.round_of(epoch, end - 1) == k
        for lane in range(order.lanes):
            reads = order.window_reads(epoch, k, lane)
            positions = order.window_positions(epoch, k, lane)
            held = [span.start + np.arange(span.count) for span in reads]
            taken = [
                each if span.take is None else each[span.take]
                for each, span in zip(held, reads, strict=True)
            ]
            assert np.array_equal(np.concatenate([[], *taken]), samples[positions])
            assert (positions % order.lanes == lane).all()
            assert ((positions >= begin) & (positions < end)).all()
            assert len(positions) <= order.window_samples
            assert all(span.count <= order.block for span in reads)
            read = np.concatenate([[], *held])
            assert len(read) == len(set(read.tolist()))  # no sample is read twice
            seen += positions.tolist()
    assert sorted(seen) == list(range(order.size))


# batch size, world and steps until the next change; drawn at once, as laws may end at any time
changes = st.lists(
    st.tuples(st.integers(2, 9), st.integers(1, 5), st.integers(1, 8)), min_size=1, max_size=9
)


def deliver_on_changing_ranks(order: Order, changes: Any, epoch: int = 0) -> tuple[Indices, int]:
    """What all ranks get in an epoch while batch size and world change, and how many are left."""
    p, got = 0, []
    for batch, world, count in islice(cycle(changes), 300):
        if not feasible(order.size, batch, world, False):
            batch, world = 2, 1
        steps = Steps(order.size, batch, world, order.lanes, drop_last=False)
        for _ in range(count):
            q = steps.stop(p)
            if q > p:
                got += [order.at(epoch, steps.rank_positions(p, r)) for r in range(world)]
            if q in (p, order.size):
                return np.concatenate(got), order.size - q
            p = q
    raise AssertionError("an epoch without end")
