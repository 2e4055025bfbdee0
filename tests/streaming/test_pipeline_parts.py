"""The parts of the pipeline: buffers, prefetching, budgets, planner, threads."""

import gc
import os
import sys
import threading
import weakref
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.arguments import format_bytes, parse_bytes
from penstock.errors import PlanError, WorkerError
from penstock.order import BlockOrder, Cursor, Plan, Steps
from penstock.order.weighted import Reweighted, WeightedBlocks, WeightedOrder
from penstock.sources.contract import Field
from penstock.streaming import planner
from penstock.streaming.budget import BlockCost, Demand, HeldDemand
from penstock.streaming.buffers import BatchBuffers, allocate, with_lifetime_token
from penstock.streaming.held import HeldReader, HeldTable
from penstock.streaming.planner import Segment, plan_parts
from penstock.streaming.prefetch import Prefetched
from penstock.streaming.threads import BackgroundThread, start_all, stop_all

PATIENCE = 20.0
FIELD = Field((2,), np.dtype("f4"))


def buffers_of(count=4, lent=2, names=("",)):
    return BatchBuffers(dict.fromkeys(names, FIELD), batch=3, count=count, lent=lent)


# -- buffers


def test_a_slot_is_free_again_when_the_last_view_is_gone():
    buffers = buffers_of()
    (slot,) = buffers.take(1)
    tensor = buffers.hand_out(slot, 3)[""]
    view = tensor[1:, 0].numpy()
    del tensor
    assert slot not in buffers.free
    del view
    assert slot in buffers.free and len(buffers.free) == 4


def test_more_than_lent_are_copies_and_their_slots_free_at_once():
    buffers = buffers_of()
    kept = [buffers.hand_out(buffers.take(1)[0], 3)[""] for _ in range(7)]
    assert len(buffers.free) == 2
    begin, end = buffers.rows[""].ctypes.data, buffers.rows[""].ctypes.data + buffers.nbytes
    inside = [begin <= tensor.data_ptr() < end for tensor in kept]
    assert inside == [True, True, False, False, False, False, False]


def test_a_short_batch_is_a_short_view():
    buffers = buffers_of()
    assert buffers.hand_out(buffers.take(1)[0], 2)[""].shape == (2, 2)


def test_views_that_die_in_many_threads_at_once_free_a_slot_once():
    buffers = buffers_of(count=8, lent=8, names=("a", "b", "c"))
    for _ in range(200):
        taken = buffers.take(8)
        batches = [buffers.hand_out(slot, 3) for slot in taken]
        parts = [[batch[name] for batch in batches] for name in ("a", "b", "c")]
        del batches
        start = threading.Barrier(3)

        def drop(mine, start=start):
            start.wait(PATIENCE)
            mine.clear()

        threads = [threading.Thread(target=drop, args=(mine,)) for mine in parts]
        del parts
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del threads
        assert sorted(buffers.free) == list(range(8))


def test_a_token_dies_after_its_memory():
    buffers, events = buffers_of(), []
    (slot,) = buffers.take(1)
    tensor, token = with_lifetime_token(buffers.hand_out(slot, 3)[""])
    weakref.finalize(token, lambda: events.append(slot in buffers.free))
    del token
    assert not events
    del tensor
    assert events == [True]


def test_reserved_memory_is_zero_and_writable():
    memory = allocate(3 << 20)
    assert memory.nbytes == 3 << 20 and not memory.any()
    memory[:] = 1
    assert allocate(0).nbytes == 0


# -- prefetching


def test_results_come_in_order_at_most_so_many_early():
    begun, full = [], threading.Event()

    def work(item):
        begun.append(item)
        if len(begun) == 3:
            full.set()
        return item

    with Prefetched(range(10), work, ahead=3, name="test") as early:
        assert full.wait(PATIENCE)
        assert begun == [0, 1, 2]
        assert list(early) == list(range(10))
        assert list(early) == []


def test_an_error_comes_after_the_results_before_it():
    def work(item):
        return 1 // (3 - item)

    with Prefetched(range(5), work, ahead=2, name="test") as early:
        assert [next(early) for _ in range(3)] == [0, 0, 1]
        for _ in range(2):
            with pytest.raises(ZeroDivisionError) as caught:
                next(early)
            assert "in thread penstock-test" in caught.value.__notes__


def test_items_that_fail_arrive_too():
    def items():
        yield 1
        raise OSError("no more")

    with Prefetched(items(), abs, ahead=2, name="test") as early:
        assert next(early) == 1
        with pytest.raises(OSError, match="no more"):
            next(early)


def test_a_closed_one_says_so():
    early = Prefetched(range(5), abs, ahead=1, name="test")
    early.close()
    early.close()
    with pytest.raises(WorkerError, match="was closed"):
        next(early)


def test_a_dropped_one_ends_its_thread():
    early = Prefetched(range(5), abs, ahead=1, name="dropped")
    (thread,) = [t for t in threading.enumerate() if t.name == "penstock-dropped"]
    del early
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux")
def test_a_background_thread_runs_at_lower_priority():
    own, found = os.getpriority(os.PRIO_PROCESS, 0), []
    thread = BackgroundThread(
        "nice", lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)), lambda: None
    )
    start_all([thread])
    stop_all([thread])
    assert found == [min(own + 5, 19)] and os.getpriority(os.PRIO_PROCESS, 0) == own


# -- budgets


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GB", 10**9), ("1 gb", 10**9), ("1.5k", 1500), ("2MiB", 2 << 20), ("7", 7), (12, 12)],
)
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1 G B"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(PlanError, match="must be a number of bytes"):
        parse_bytes(text)


def test_sizes_for_people():
    assert [format_bytes(n) for n in (5, 1500, 2_500_000, 3 * 10**12)] == [
        "5 B",
        "1.5 kB",
        "2.5 MB",
        "3 TB",
    ]


@given(
    st.integers(1, 10_000),
    st.integers(1, 4),
    st.integers(1, 64),
    st.integers(1, 4),
    st.integers(1, 500),
    st.integers(1, 6),
    st.integers(0, 10**8),
    st.sampled_from([Demand, HeldDemand]),
)
def test_the_largest_window_fits_and_one_more_does_not(
    row, steps, batch, world, block, lanes, over, kind
):
    source = SimpleNamespace(sample_bytes=row * steps, chunk_bytes=row, resident_bytes=0)
    source.cost = lambda n: BlockCost((n + steps) * row, 0, 0)
    demand = kind(source, batch, batch * world, 2)
    size = 100_000
    window = demand.largest_window(over, size=size, block=block, lanes=lanes)

    def needed(blocks):
        samples = min(size, lanes * (blocks + 1) * block)
        return demand.nbytes(block=block, round_samples=samples, lanes=lanes)

    assert window == 0 or needed(window) <= over
    assert window == max(1, size // block // lanes) or needed(window + 1) > over


# -- planner


@settings(max_examples=25)
@given(
    st.integers(3, 150),
    st.integers(1, 20),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(2, 20),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([1, 17, planner.PART_SAMPLES]),
    st.data(),
)
def test_every_row_of_every_batch_is_written_exactly_once(
    size, block, window, lanes, batch, world, drop_last, part_samples, data
):
    assume(size >= (batch * world if drop_last else world))
    order = BlockOrder(size, 7, block, window, lanes)
    steps = Steps(size, batch, world, lanes, drop_last)
    step = data.draw(st.integers(0, steps.count - 1))
    for rank in range(world):
        plan, cursor = Plan(order, steps, rank), Cursor(3, steps.start(step))
        segment = Segment.of(steps, cursor, steps.steps_from(cursor.position))
        assert segment.count == steps.count - step
        samples, ready, held = {}, 0, Counter()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planner, "PART_SAMPLES", part_samples)
            parts = list(plan_parts(plan, order, iter([segment])))
        begins = True
        for part in parts:
            planned = part.round
            assert part.begins is begins
            assert planned.ready >= ready and planned.first <= ready
            rows = iter(part.rows.tolist())
            for read in part.reads:
                keep = np.ones(read.count, bool) if read.keep is None else read.keep
                for j, row in zip(np.flatnonzero(keep), rows, strict=False):
                    place = planned.first + row // batch, row % batch
                    assert place[0] < planned.stop
                    assert place not in samples
                    samples[place] = read.start + int(j)
            assert next(rows, None) is None
            begins = part.ends
            if part.ends:
                ready = planned.ready
                for number in range(planned.first, ready):
                    held[number] += 1
        assert begins
        assert ready == segment.count
        for number, walked in enumerate(plan.walk(cursor, segment.count)):
            got = [samples.pop((number, row)) for row in range(len(walked.samples))]
            assert got == walked.samples.tolist()
        assert not samples


# -- rounds that repeat samples, and leave some out


@settings(max_examples=30)
@given(
    st.integers(3, 120), st.integers(1, 4), st.integers(2, 20), st.integers(1, 3), st.booleans(),
    st.integers(0, 99), st.data(),
)  # fmt: skip
def test_rounds_that_repeat_samples_fill_every_batch(
    size, lanes, batch, world, drop_last, seed, data
):
    assume(size >= (batch * world if drop_last else world))
    weights = np.random.default_rng(seed).gamma(0.3, size=data.draw(st.integers(1, 90))) + 1e-3
    weighted = Reweighted([(0, WeightedOrder(weights, size, seed))])
    order = WeightedBlocks(weighted, data.draw(st.integers(1, 20)), 3, lanes)
    steps = Steps(size, batch, world, lanes, drop_last)
    cursor = Cursor(0, steps.start(data.draw(st.integers(0, steps.count - 1))))
    for rank in range(world):
        plan = Plan(order, steps, rank)
        segment = Segment.of(steps, cursor, steps.steps_from(cursor.position))
        walked = list(plan.walk(cursor, segment.count))
        table, delivered = HeldTable(Numbers(4 * size), batch), 0
        for part in plan_parts(plan, order, iter([segment])):
            for read, target in zip(part.reads, table.open_part(part), strict=True):
                HeldReader(table._blocks).read(read, target)
            if part.ends:
                table.round_read()
                for number in range(delivered, part.round.ready):
                    wanted = walked[number].samples
                    assert table.hand_out(number, len(wanted))[""] == wanted.tolist()
                delivered = part.round.ready
        assert delivered == segment.count == len(walked)
        assert not table._blocks.held


class Numbers:
    """Blocks that hold the numbers of their samples; batches are lists of them."""

    block = 20

    def __init__(self, places):
        self.places, self.held = places, {}

    def fill(self, place, samples, epoch):
        assert place not in self.held
        self.held[place] = samples

    def free(self, place):
        del self.held[place]

    def begin_batch(self):
        return Gathered(self, {})


@dataclass
class Gathered:
    blocks: Numbers
    rows: dict

    def gather(self, numbers, rows):
        for row, number in zip(range(len(numbers)) if rows is None else rows, numbers, strict=True):
            self.rows[int(row)] = int(self.blocks.held[number // 20][number % 20])

    def finish(self, rows):
        return {"": [self.rows[row] for row in range(rows)]}

    def drop(self):
        pass


def test_torch_sees_the_memory_of_a_slot():
    buffers = buffers_of()
    (slot,) = buffers.take(1)
    buffers.arrays(slot, 3)[""][:] = [[1, 2], [3, 4], [5, 6]]
    assert torch.equal(buffers.hand_out(slot, 3)[""], torch.tensor([[1.0, 2], [3, 4], [5, 6]]))
