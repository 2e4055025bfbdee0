"""Rows written past the cache are the rows numpy would write."""

import platform
import shutil
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock import StreamLoader
from penstock.streaming import past_cache
from penstock.streaming.memory import reserve
from penstock.streaming.past_cache import CACHED, LINE, pays, scatter_past_cache
from penstock.streaming.placing import as_items

KIND = sys.platform == "linux" and platform.machine() == "x86_64"
compiled = pytest.mark.skipif(not past_cache.COMPILED, reason="no C compiler at installation")


@pytest.mark.skipif(not KIND or shutil.which("cc") is None, reason="nothing to compile with")
def test_it_is_compiled_where_there_is_a_compiler():
    assert past_cache.COMPILED


@compiled
@given(
    rows=st.integers(0, 30),
    steps=st.integers(1, 3),
    width=st.integers(1, 70) | st.sampled_from([64, 128, 500, 512, 4096, 5000]),
    shift=st.integers(0, 2 * LINE),
    data=st.data(),
)
def test_rows_are_placed_as_numpy_places_them(rows, steps, width, shift, data):
    array = np.random.default_rng(rows).integers(0, 256, (rows + steps - 1, width), np.uint8)
    item = np.dtype((np.void, steps * width))
    items = as_items(array, rows, item) if len(array) else np.zeros(0, item)
    targets = np.array(data.draw(st.permutations(range(40)))[:rows], np.int64)
    memory = np.full(shift + 40 * item.itemsize + LINE, 7, np.uint8)
    expected = memory.copy()
    for where, how in ((memory, scatter_past_cache), (expected, by_numpy)):
        how(items, where[shift : shift + 40 * item.itemsize].view(item), targets)
    assert memory.tobytes() == expected.tobytes()  # and nothing around them is touched


def by_numpy(items, rows, targets):
    rows[targets] = items


@compiled
@pytest.mark.parametrize("target", [-1, 4, 2**62, -(2**62)])
def test_a_row_that_is_none_is_refused(target):
    items = np.frombuffer(bytes(range(192)), "V64")
    rows = np.zeros(4, "V64")
    with pytest.raises(IndexError, match=f"row {target} is asked for; there are 4"):
        scatter_past_cache(items, rows, np.array([2, target, 0]))
    assert rows[2] == items[0] and not np.delete(rows, 2).view(np.uint8).any()


@pytest.mark.parametrize(
    ("size", "nbytes", "worth"),
    [
        (64, CACHED, True),
        (64, CACHED // 2, False),  # may be read from the cache
        (100, CACHED, False),  # all lines are shared with other rows
        (1000, CACHED, True),
    ],
)
def test_it_is_used_where_it_pays(size, nbytes, worth):
    rows = reserve(-(-nbytes // size) * size).view(f"V{size}")
    assert pays(rows) == (worth and past_cache.COMPILED)


@pytest.mark.parametrize("way", [pytest.param("past the cache", marks=compiled), "numpy"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("width", [1, 16, 75, 1024])
def test_streams_are_the_same_either_way(way, steps, width, monkeypatch, tmp_path):
    monkeypatch.setattr(past_cache, "COMPILED", way != "numpy")
    for bound in ("CACHED", "LONG_ROW"):
        monkeypatch.setattr(past_cache, bound, 0)
    real, calls = past_cache._scatter, []
    monkeypatch.setattr(past_cache, "_scatter", lambda *args: calls.append(args) or real(*args))
    array = np.random.default_rng(1).standard_normal((300 + steps - 1, width), np.float32)
    np.save(tmp_path / "rows.npy", array)
    for rank in range(2):
        with StreamLoader(
            tmp_path / "rows.npy", 16, block_samples=20, window_blocks=3, steps=steps, seed=5,
            rank=rank, world_size=2, lanes=1,
        ) as loader:  # fmt: skip
            for step, batch in enumerate(loader):
                samples = loader.samples_at(step, epoch=0)
                rows = array[samples] if steps == 1 else sliding(array, samples, steps)
                assert torch.equal(batch, torch.from_numpy(rows))
    assert bool(calls) == (way != "numpy")


def sliding(array, samples, steps):
    return np.stack([array[i : i + steps] for i in samples])
