"""Another chunk size under way, and the time that is waited for batches."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.loaders import ChunkedDataLoader, StreamLoader
from penstock.loaders.plan_settings import ORDERS, order_named

SIZES = st.integers(1, 9)


@given(st.integers(1, 40), st.integers(1, 4), SIZES | st.none(), st.lists(SIZES, max_size=6))
def test_a_pass_is_every_sample_once_whatever_sizes_its_chunks_have(n, batch, first, sizes):
    loader = ChunkedDataLoader(torch.arange(n), batch, first, shuffle=True)
    seen = []
    for size in sizes:
        if loader.state_dict()["epoch"]:
            break
        loader.set_chunk_size(size)
        assert loader.chunk_size == loader.effective_chunk_size == size and loader.use_chunked
        before = loader.remaining
        got = [x for batch in loader for x in batch.tolist()]
        assert len(got) <= before * batch and before <= size
        seen += got
    while not loader.state_dict()["epoch"]:
        seen += [x for batch in loader for x in batch.tolist()]
    assert sorted(seen) == [*range(n)]


def test_a_chunk_size_beats_the_limit_a_loader_had():
    loader = ChunkedDataLoader(torch.arange(10), 2, limit_batches=1)
    loader.set_chunk_size(3)
    assert [len(list(loader)) for _ in range(2)] == [3, 2]


def test_a_stream_takes_another_chunk_size_too():
    with StreamLoader(np.arange(100), 10, chunk_size=3, block_samples=10) as loader:
        list(loader)
        loader.set_chunk_size(5)
        assert loader.chunk_size == 5 and len(list(loader)) == 2


def test_a_chunk_size_below_one_is_refused_and_changes_nothing():
    loader = ChunkedDataLoader(torch.arange(10), 2, 3)
    with pytest.raises(PlanError, match="chunk_size must be at least 1 batch, got 0"):
        loader.set_chunk_size(0)
    assert loader.chunk_size == 3 and len(list(loader)) == 3


class Held:
    """A dataset whose samples come when they are let, or after some seconds."""

    def __init__(self, seconds=20.0):
        self.seconds = seconds
        self.asked, self.let = threading.Event(), threading.Event()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.asked.set()
        self.let.wait(self.seconds)
        return index


def test_the_time_inside_next_is_what_was_waited():
    data = Held(seconds=0.02)
    loader = ChunkedDataLoader(data, 2)
    assert loader.waited_seconds == 0.0
    next(iter(loader))
    data.let.set()
    first = loader.waited_seconds
    assert first >= 0.04
    list(loader)
    assert first < loader.waited_seconds < first + 10


@pytest.mark.parametrize("kind", ORDERS)
def test_every_order_has_its_name(kind):
    order = order_named(kind, 100, seed=7)
    assert (order.kind, order.size, order.seed) == (kind, 100, 7)
    assert sorted(order.at(3, np.arange(100)).tolist()) == [*range(100)]
