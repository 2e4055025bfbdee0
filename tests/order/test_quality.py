"""The quality of a full shuffle: the figures are those that a count of the order finds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import PlanError, StreamLoader
from penstock.order import BlockOrder, Steps
from penstock.order.quality import blocks_for, shuffle_quality, window_for
from penstock.order.subset import Bitmap, SelectedBlocks
from penstock.sources import MemorySource
from penstock.testing import WatchedSource


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(2, 8),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([8, 16]),
    st.integers(0, 99),
)
def test_the_figures_are_those_of_a_count(block, window, lanes, batch, seed):
    size = 12 * block * window * lanes  # rounds of one size
    order = BlockOrder(size, seed, block, window, lanes)
    quality, steps = shuffle_quality(order, batch), Steps(size, batch, 1, lanes)
    pairs = same = 0
    within = block * window * lanes // batch * batch  # steps inside one round
    for epoch in range(3):
        samples = order.at(epoch, np.arange(size))
        for start in range(0, size, block * window * lanes):
            for p in range(start, start + within, batch):
                blocks = np.bincount(samples[steps.rank_positions(p, 0, p + batch)] // block)
                same += int((blocks * (blocks - 1)).sum())
                pairs += batch * (batch - 1)
        at = np.argsort(samples)
        apart = np.abs(np.diff(at))[np.arange(1, size) % block != 0]
        assert apart.mean() == pytest.approx(quality.distance, rel=0.25)
    if pairs:
        error = 5 * (quality.same_block / pairs) ** 0.5 * batch
        assert same / pairs == pytest.approx(quality.same_block, rel=0.15, abs=error)
    assert quality.share * quality.blocks == pytest.approx(1)
    assert 0 < quality.mixing <= 1 and quality.distance <= quality.full_distance * 1.01


@given(
    st.floats(0.05, 0.99),
    st.integers(1, 10**7),
    st.integers(1, 10**4),
    st.integers(1, 8),
    st.integers(1, 4096),
)
def test_a_window_that_is_asked_for_reaches_its_quality_and_no_smaller_one_does(
    mixing, size, block, lanes, whole
):
    block = min(block, size)
    most = max(1, size // block // lanes)
    window = window_for(mixing, size=size, block=block, lanes=lanes, whole=whole)
    assert 1 <= window <= most

    def of(count):
        return shuffle_quality(BlockOrder(size, 0, block, count, lanes), whole).mixing

    if window < most:
        assert of(window) >= mixing
    if window > 1:
        assert of(window - 1) < mixing
    found = blocks_for(
        mixing, size=size, block=block, lanes=lanes, whole=whole, fits=lambda b, w: b * w <= 1000
    )
    assert found is None or found[0] * found[1] <= 1000


def test_a_stream_chooses_blocks_and_windows_for_a_quality_within_its_budget():
    data = torch.zeros(20_000, 25)  # 100 bytes a sample
    options = {"memory_budget": "1MB", "threads": 1}
    found = {}
    for mixing in (0.3, 0.6, 0.8):
        with StreamLoader(data, 32, mixing=mixing, **options) as loader:
            quality = shuffle_quality(loader.plan.order, 32)
            assert quality.mixing >= mixing and loader.buffer_bytes <= 10**6
            assert f"mixing    {quality.mixing:.2f} of a full shuffle" in loader.describe()
            found[mixing] = loader.buffer_bytes
            state = loader.state_dict()
        with StreamLoader(data, 32, **options) as other:  # the geometry is in the state
            other.load_state_dict(state)
            assert other.plan.order.identity() == loader.plan.order.identity()
    assert found[0.3] <= found[0.8]
    stored = WatchedSource(data.numpy(), block_samples=500)
    with pytest.raises(PlanError, match=r"mixing=0.9 does not fit into memory_budget=1 MB, which"):
        StreamLoader(stored, 32, mixing=0.9, **options)
    with pytest.raises(PlanError, match="leave these out, or mixing"):
        StreamLoader(data, 32, mixing=0.5, window_blocks=3)
    for wrong in (0, 1, 2.0, "0.9", True):
        with pytest.raises(PlanError, match="mixing must be"):
            StreamLoader(data, 32, mixing=wrong)


@pytest.mark.parametrize(("size", "block"), [(20_000, 16_384), (1000, 999), (50, 100), (640, 64)])
def test_one_window_of_everything_is_a_shuffle_of_everything(size, block):
    quality = shuffle_quality(BlockOrder(size, 1, block, window=100), batch=8)
    assert quality.mixing == 1 and quality.distance == quality.full_distance


@settings(max_examples=15)
@given(
    *(st.integers(4, 16), st.integers(2, 8), st.sampled_from([1, 2]), st.integers(0, 99)),
    st.sampled_from(["even", "clustered"]),
)
def test_the_figures_of_selected_blocks_are_those_of_a_count(block, window, lanes, seed, kind):
    rng, size, batch = np.random.default_rng(seed), 60 * block * window * lanes, 8
    share = 0.5 if kind == "even" else rng.random(size // block).repeat(block) ** 3
    kept = Bitmap(rng.random(size) < share)
    order = SelectedBlocks(kept, seed, block, window, lanes)
    quality, steps = shuffle_quality(order, batch), Steps(order.size, batch, 1, lanes)
    pairs = same = 0
    for epoch in range(3):
        found = kept.select(order.at(epoch, np.arange(order.size))) // block
        for p in range(0, order.size - batch, batch):
            blocks = np.bincount(found[steps.rank_positions(p, 0, p + batch)])
            same += int((blocks * (blocks - 1)).sum())
            pairs += batch * (batch - 1)
    # steps over the border of two rounds have fewer pairs of one block
    over = batch / (block * window * lanes)
    assert same / pairs == pytest.approx(quality.same_block, rel=0.2 + over)
    assert 0 < quality.mixing <= 1 and quality.distance <= quality.full_distance * 1.01
    everything = shuffle_quality(SelectedBlocks(kept, seed, block, size), batch)
    assert everything.mixing == 1 and everything.distance == everything.full_distance
    assert everything.blocks == round(1 / everything.full_share)


def test_a_stream_of_selected_samples_says_how_well_it_mixes():
    data = MemorySource(np.zeros((20_000, 25), np.float32))
    part = data.select(np.random.default_rng(0).random(20_000) < 0.3)
    given = {"block_samples": 100, "memory_budget": "8MB"}
    found = []
    for window in (2, 20, 200):
        with StreamLoader(part, 32, window_blocks=window, **given) as loader:
            quality = shuffle_quality(loader.plan.order, 32)
            assert f"mixing    {quality.mixing:.2f} of a full shuffle" in loader.describe()
            found.append(quality.mixing)
    assert found == sorted(found) and found[0] < 0.3 and found[-1] > 0.95
    with StreamLoader(part, 32, shuffle=False, **given) as loader:
        assert "none: samples come in storage order" in loader.describe()
