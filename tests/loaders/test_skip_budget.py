"""Skips that make a rank read other lanes are within the budget, or refused with advice."""

import re

import numpy as np
import pytest

from penstock import PlanError, StreamLoader

ROWS = np.arange(20_000 * 64, dtype="f4").reshape(20_000, 64)
RANK = {"steps": 25, "rank": 0, "world_size": 2}


def test_a_skip_that_needs_more_memory_is_refused_and_the_advice_works():
    with StreamLoader(ROWS, 32, memory_budget="6MB", **RANK) as loader:
        loader.skip(0, 33, 250)
        with pytest.raises(PlanError, match="reads all 2 lanes") as refused:
            next(iter(loader))
    block, window = re.search(
        r"block_samples=(\d+), window_blocks=(\d+)", str(refused.value)
    ).groups()
    budget = re.search(r'memory_budget="(\w+|[\d.]+\w+)"', str(refused.value))[1]
    advised = {"block_samples": int(block), "window_blocks": int(window), "memory_budget": budget}
    with StreamLoader(ROWS, 32, **RANK, **advised) as loader:
        loader.skip(0, 33, 250)
        assert next(iter(loader)).shape == (32, 25, 64)


def test_a_multiple_of_the_lanes_needs_no_more_memory():
    with StreamLoader(ROWS, 32, memory_budget="6MB", **RANK) as loader:
        loader.skip(0, 33, 251)
        assert next(iter(loader)).shape == (32, 25, 64)
