"""A state goes anywhere it fits, and is refused in one sentence where it does not."""

import json
import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError, StateError
from penstock.loaders.stream import StreamLoader
from penstock.order import Cursor
from penstock.sources.contract import Field
from penstock.streaming.planner import Segment, plan_parts
from penstock.testing import WatchedSource
from tests.cases import each_once

ARRAY = np.arange(1200)


def through_json(state):
    return json.loads(json.dumps(state))


def state_after(batches, **options):
    with StreamLoader(ARRAY, 10, **options) as loader:
        for _ in zip(range(batches), loader, strict=False):
            pass
        return through_json(loader.state_dict())


def test_block_window_and_lanes_are_adopted_where_none_was_given():
    state = state_after(5, block_samples=7, window_blocks=3, lanes=4)
    with StreamLoader(ARRAY, 10) as loader:
        assert loader.block_samples != 7
        loader.load_state_dict(state)
        assert (loader.block_samples, loader.window_blocks, loader.lanes) == (7, 3, 4)
        assert loader.state_dict() == state
        assert loader.describe().count("restored from a state") == 3


def test_what_was_given_is_not_adopted_but_refused():
    state = state_after(5, block_samples=7, window_blocks=3, lanes=4)
    for given_value, word in (
        ({"block_samples": 8}, "blocks of 7 samples.*blocks of 8"),
        ({"window_blocks": 2}, "windows of 3 blocks.*windows of 2"),
        ({"lanes": 2}, "4 lanes.*2 lanes"),
    ):
        loader = StreamLoader(ARRAY, 10, **given_value)
        before = loader.state_dict()
        with pytest.raises(StateError, match=word):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
        assert "adopted" not in loader.describe()


def test_the_same_value_given_is_accepted():
    state = state_after(5, block_samples=7, window_blocks=3, lanes=4)
    loader = StreamLoader(ARRAY, 10, block_samples=7, window_blocks=3, lanes=4)
    loader.load_state_dict(state)
    assert loader.state_dict() == state


def test_windows_too_large_for_the_budget_are_refused_with_a_budget_that_works():
    state = state_after(5, block_samples=100, window_blocks=6)
    loader = StreamLoader(ARRAY, 10, memory_budget="8kB", block_samples=None)
    before = loader.state_dict()
    with pytest.raises(StateError, match="memory_budget=8 kB is too small") as refusal:
        loader.load_state_dict(state)
    assert loader.state_dict() == before
    # other blocks or windows would not fit the state: only the budget is advised
    (advice,) = advised(refusal.value)
    StreamLoader(ARRAY, 10, **advice).load_state_dict(state)


def test_an_old_state_loads_where_its_buffers_fit_without_their_bookkeeping(caplog):
    """Such states were written before bookkeeping was counted."""
    state = state_after(5, block_samples=1, window_blocks=1200)
    probe = StreamLoader(ARRAY, 10, block_samples=1, window_blocks=1200)
    resolver = probe._orders.resolver(probe.batch_size, probe.world_size)
    buffers = resolver.demand.buffers(1, resolver.round_samples(probe.geometry), 1)
    assert buffers < probe.buffer_bytes / 2
    loader = StreamLoader(ARRAY, 10, memory_budget=buffers)
    with caplog.at_level("WARNING", "penstock"):
        loader.load_state_dict(state)
    assert "bookkeeping was not counted" in caplog.text
    assert loader.state_dict() == state


def advised(error):
    """The arguments that a refusal names, each as a dict of its own."""
    text = str(error).rsplit("pass ", 1)[1]
    found = [advice.split("=") for advice in text.split(" or ")]
    return [{name: json.loads(value)} for name, value in found]


class Declared:
    """A source of which only the shape is known: a budget looks at nothing else."""

    def __init__(self, shape, dtype, chunk):
        self.fields = {"": Field(shape[1:], np.dtype(dtype))}
        self._zero, self._chunk = np.broadcast_to(np.zeros((), dtype), shape), chunk
        self.block_samples = chunk or max(1, min(shape[0], 10**6 // self.fields[""].nbytes))

    def __len__(self):
        return len(self._zero)

    def fingerprint(self):
        return "declared"

    def read(self, start, stop, out):
        raise NotImplementedError

    take = read

    def view(self, start, stop):
        return None if self._chunk else {"": self._zero[start:stop]}


SHAPES = [
    ((40_000,), "u2"),
    ((4000, 8), "f4"),
    ((2000, 2500), "f4"),
    ((300, 100_000), "u1"),
    ((40, 2_000_000), "u1"),
]
ASKED = [
    {},
    {"block_samples": 256},
    {"block_samples": 16, "window_blocks": 64},
    {"window_blocks": 500},
    {"steps": 7},
    {"steps": 7, "block_samples": 100, "window_blocks": 5},
    {"lanes": 3, "rank": 0, "world_size": 3},
    {"shuffle": False, "block_samples": 1000},
]


@pytest.mark.parametrize(("options", "chunk"), each_once(ASKED, [None, 1, 50]), ids=str)
def test_every_value_that_a_refusal_names_works(options, chunk):
    followed = 0
    for shape, dtype in SHAPES:
        data = Declared(shape, dtype, chunk)
        for batch in (1, 8, 12):
            for budget in (1, "20kB", "300kB", "4MB", "50MB", "200MB"):
                asked = {"batch_size": batch, "memory_budget": budget, **options}
                try:
                    StreamLoader(data, **asked)
                except PlanError as error:
                    assert str(error).startswith("memory_budget=")
                    for advice in advised(error):
                        loader = StreamLoader(data, **{**asked, **advice})
                        assert loader.buffer_bytes <= loader.memory_budget
                        followed += 1
    assert followed


def test_a_refusal_names_what_was_asked_found_and_to_do():
    rows = WatchedSource(np.zeros((2000, 125_000), "u1"), block_samples=512)
    with pytest.raises(PlanError) as refusal:
        StreamLoader(rows, 8, memory_budget="64MB", block_samples=512)
    assert re.fullmatch(
        r"memory_budget=64 MB is too small: one block of 512 samples needs \d+ MB of buffers; "
        r'pass memory_budget="\d+MB"',
        str(refusal.value),
    )  # here no smaller block helps: a chunk of the storage does not fit


def test_changed_data_is_refused_unless_allowed():
    state = state_after(5, block_samples=7, window_blocks=3)
    other = StreamLoader(ARRAY + 1, 10)
    with pytest.raises(StateError, match="the data changed since the state was taken"):
        other.load_state_dict(state)
    other.load_state_dict(state, allow_changed_data=True)
    assert other.state_dict()["position"] == state["position"]
    with other:
        assert torch.equal(next(iter(other)), torch.from_numpy(ARRAY[other.samples_at(5)] + 1))


def test_another_seed_size_or_kind_of_order_is_refused():
    state = state_after(5)
    for loader, word in (
        (StreamLoader(ARRAY, 10, seed=7), "seed 42.*seed 7"),
        (StreamLoader(ARRAY[:-1], 10), "1,200 samples.*1,199 samples"),
        (StreamLoader(ARRAY, 10, shuffle=False), "'block' order.*'sequential' order"),
    ):
        with pytest.raises(StateError, match=word):
            loader.load_state_dict(state)


def test_a_drawn_seed_is_kept_in_the_state_and_adopted(caplog):
    with caplog.at_level("INFO", logger="penstock"):
        one, other = StreamLoader(ARRAY, 10, seed=None), StreamLoader(ARRAY, 10, seed=None)
    assert "using random seed" in caplog.text
    assert one.seed != other.seed
    other.load_state_dict(one.state_dict())
    assert other.seed == one.seed
    with one, other:
        assert torch.equal(next(iter(one)), next(iter(other)))


@pytest.mark.parametrize(
    "damage", [{"block": "7"}, {"window": 0}, {"lanes": 1.5}, {"position": -1}, {"epoch": None}]
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    loader = StreamLoader(ARRAY, 10)
    before = loader.state_dict()
    with pytest.raises(StateError):
        loader.load_state_dict({**state_after(3), **damage})
    assert loader.state_dict() == before


def test_set_batch_size_keeps_the_place_and_the_geometry():
    with StreamLoader(ARRAY, 10, chunk_size=6, memory_budget="30kB") as loader:
        seen = [i for batch in loader for i in batch.tolist()]
        geometry = {n: loader.state_dict()[n] for n in ("block", "window", "lanes", "position")}
        loader.set_batch_size(15)
        assert loader.batch_size == 15
        assert {n: loader.state_dict()[n] for n in geometry} == geometry
        while loader.state_dict()["epoch"] == 0:
            seen += [i for batch in loader for i in batch.tolist()]
    assert sorted(seen) == ARRAY.tolist()


def test_a_batch_size_beyond_the_budget_is_refused_and_changes_nothing():
    with StreamLoader(ARRAY, 10, memory_budget="50kB", block_samples=100) as loader:
        before, batch = loader.state_dict(), next(iter(loader))
        with pytest.raises(PlanError, match="memory_budget"):
            loader.set_batch_size(1000)
        assert loader.batch_size == 10 == len(batch)
        loader.seek(0)
        assert loader.state_dict() == before
        assert torch.equal(next(iter(loader)), batch)


# -- who reads what


def blocks_read(rank, world, *, samples, batch, block, window, lanes):
    """Blocks a rank reads in one epoch, each as often as it is read."""
    source = WatchedSource(np.arange(samples), block_samples=block)
    options = {"window_blocks": window, "lanes": lanes, "rank": rank, "world_size": world}
    with StreamLoader(source, batch, drop_last=False, **options) as loader:
        first = planned_reads(loader, 0)
        then = sum((planned_reads(loader, epoch) for epoch in range(1, 9)), Counter())
        for _ in loader:
            pass
    happened = Counter(source.reads)
    assert first <= happened  # all that was planned was read, once
    assert happened - first <= then  # and nothing else, but what is read ahead
    return Counter(start // block for start, _ in first.elements())


def planned_reads(loader, epoch):
    plan = loader.position.plan
    segment = Segment.of(plan.steps, Cursor(epoch), plan.steps.count)
    parts = plan_parts(plan, plan.order, iter([segment]))
    return Counter((r.start, r.start + r.count) for part in parts for r in part.reads)


@pytest.mark.parametrize(("world", "lanes", "batch"), [(2, 2, 8), (2, 4, 8), (4, 4, 3), (3, 6, 8)])
def test_ranks_read_only_their_own_blocks_where_lanes_divide_the_step(world, lanes, batch):
    block = 6
    samples = block * lanes * 20  # no leftover, and whole steps: nothing is shared
    assert samples % (batch * world) == 0
    geometry = {"samples": samples, "batch": batch, "block": block, "window": 5, "lanes": lanes}
    read = [blocks_read(rank, world, **geometry) for rank in range(world)]
    together = sum(read, Counter())
    assert together == Counter(range(samples // block))  # each block once, by one rank


@settings(max_examples=5)
@given(
    st.integers(50, 900),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(2, 12),
    st.integers(1, 6),
)
def test_only_the_ragged_end_is_read_by_two_ranks(samples, world, more, each, block, window):
    lanes, batch = world * more, each * more + (each * more == 1)
    assume(samples >= world * batch and (batch * world) % lanes == 0)
    geometry = {"samples": samples, "batch": batch, "block": block, "window": window}
    read = [blocks_read(rank, world, lanes=lanes, **geometry) for rank in range(world)]
    together = sum(read, Counter())
    spread = 2 * lanes  # leftover blocks are cut into slices
    ragged = 2 * lanes * (window + 2)  # the last two steps, in the last round's windows
    assert together.total() <= -(-samples // block) + spread + (world > 1) * world * ragged


@settings(max_examples=5)
@given(st.integers(300, 900), st.integers(2, 4), st.integers(1, 7), st.integers(5, 40))
def test_otherwise_a_rank_reads_at_most_about_twice_its_share(samples, world, lanes, batch):
    block, window = 6, 4
    geometry = {"samples": samples, "batch": batch, "block": block, "window": window}
    for rank in range(world):
        read = blocks_read(rank, world, lanes=lanes, **geometry)
        share = max(1, -(-lanes // world)) / lanes  # lanes that a rank cannot do without
        assert read.total() <= 2 * share * samples / block + 3 * lanes * (window + 2)
