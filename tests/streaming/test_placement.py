"""Rows of a block are copied to their targets: by numpy, or past the cache."""

import platform
import shutil
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock import StreamLoader
from penstock.streaming import copies
from penstock.streaming.buffers import allocate
from penstock.streaming.copies import (
    CACHE_BYTES,
    LINE_BYTES,
    as_items,
    bypasses_cache,
    copy_past_cache,
    scatter,
)

KIND = sys.platform == "linux" and platform.machine() == "x86_64"
compiled = pytest.mark.skipif(not copies.COMPILED, reason="no C compiler at installation")


@pytest.mark.skipif(not KIND or shutil.which("cc") is None, reason="nothing to compile with")
def test_it_is_compiled_where_there_is_a_compiler():
    assert copies.COMPILED


@compiled
@given(
    rows=st.integers(0, 30),
    steps=st.integers(1, 3),
    width=st.integers(1, 70) | st.sampled_from([64, 128, 500, 512, 4096, 5000]),
    shift=st.integers(0, 2 * LINE_BYTES),
    data=st.data(),
)
def test_rows_are_written_as_numpy_writes_them(rows, steps, width, shift, data):
    array = np.random.default_rng(rows).integers(0, 256, (rows + steps - 1, width), np.uint8)
    item = np.dtype((np.void, steps * width))
    items = as_items(array, rows, item) if len(array) else np.zeros(0, item)
    targets = np.array(data.draw(st.permutations(range(40)))[:rows], np.int64)
    memory = np.full(shift + 40 * item.itemsize + LINE_BYTES, 7, np.uint8)
    expected = memory.copy()
    for where, how in ((memory, copy_past_cache), (expected, by_numpy)):
        how(items, where[shift : shift + 40 * item.itemsize].view(item), targets)
    assert memory.tobytes() == expected.tobytes()  # and nothing around them is touched


def by_numpy(items, rows, targets):
    rows[targets] = items


@compiled
@pytest.mark.parametrize("target", [-1, 4, 2**62, -(2**62)])
def test_a_target_out_of_range_is_refused(target):
    items = np.frombuffer(bytes(range(192)), "V64")
    rows = np.zeros(4, "V64")
    with pytest.raises(IndexError, match=f"row {target} is out of range: there are 4"):
        copy_past_cache(items, rows, np.array([2, target, 0]))
    assert rows[2] == items[0] and not np.delete(rows, 2).view(np.uint8).any()


@pytest.mark.parametrize(
    ("size", "nbytes", "worth"),
    [
        (64, CACHE_BYTES, True),
        (64, CACHE_BYTES // 2, False),  # may be read from the cache
        (100, CACHE_BYTES, False),  # all lines are shared with other rows
        (1000, CACHE_BYTES, True),
    ],
)
def test_the_cache_is_bypassed_for_much_memory_in_whole_lines(size, nbytes, worth):
    rows = allocate(-(-nbytes // size) * size).view(f"V{size}")
    assert bypasses_cache(rows) == (worth and copies.COMPILED)


@pytest.mark.parametrize("way", [pytest.param("past the cache", marks=compiled), "numpy"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("width", [1, 16, 75, 1024])
def test_streams_are_the_same_either_way(way, steps, width, monkeypatch, tmp_path):
    monkeypatch.setattr(copies, "COMPILED", way != "numpy")
    for bound in ("CACHE_BYTES", "LONG_ROW_BYTES"):
        monkeypatch.setattr(copies, bound, 0)
    real, calls = copies.copy_past_cache, []
    monkeypatch.setattr(copies, "copy_past_cache", lambda *a, **k: calls.append(a) or real(*a, **k))
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


@given(st.integers(1, 9), st.integers(1, 4), st.sampled_from(["u1", "f4", "c16", "?"]))
def test_rows_as_items_are_windows_of_rows(rows, steps, dtype):
    array = np.arange((rows + steps - 1) * 3).reshape(-1, 3).astype(dtype)
    items = as_items(array, rows, np.dtype((np.void, 3 * steps * array.itemsize)))
    assert items.shape == (rows,)
    for i, item in enumerate(items):
        assert item.tobytes() == array[i : i + steps].tobytes()


@given(st.integers(1, 30), st.integers(1, 3), st.sampled_from([1, 700, 40_000]), st.data())
def test_few_large_items_are_scattered_like_many_small_ones(rows, steps, width, data):
    array = np.random.default_rng(rows).integers(0, 9, (rows + steps - 1, width), np.uint8)
    item = np.dtype((np.void, steps * width))
    targets = np.array(data.draw(st.permutations(range(40))))[:rows]
    places = np.zeros(40, item)
    scatter(as_items(array, rows, item), places, targets)
    for i, target in enumerate(targets.tolist()):
        assert places[target].tobytes() == array[i : i + steps].tobytes()
    untouched = np.delete(places, targets)
    assert not untouched.view(np.uint8).any()


@pytest.mark.parametrize("compiled", [copies.COMPILED, False])
def test_others_go_on_while_a_few_large_rows_are_scattered(compiled, monkeypatch):
    monkeypatch.setattr(copies, "COMPILED", compiled)
    items = np.zeros(2, np.dtype((np.void, 48 << 20)))
    places, spans = np.zeros_like(items), []

    def work():
        begin = time.perf_counter()
        scatter(items, places, np.array([1, 0]))
        spans.append((begin, time.perf_counter()))

    def goes_on() -> bool:
        """Whether this thread ran in the middle of the other's work."""
        seen, thread = [], threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            seen.append(time.perf_counter())
        begin, end = spans[-1]
        quarter = (end - begin) / 4
        return any(begin + quarter < now < end - quarter for now in seen)

    # on a busy machine this thread may not get a core for a while
    deadline = time.monotonic() + 30
    while not goes_on():
        assert time.monotonic() < deadline


@pytest.mark.parametrize("compiled", [copies.COMPILED, False])
def test_pieces_of_memory_are_written_one_after_the_other(monkeypatch, compiled):
    monkeypatch.setattr(copies, "COMPILED", compiled)
    held, out = np.arange(100, dtype=np.uint8), np.zeros(9, np.uint8)
    begins = held.ctypes.data + np.array([50, 7, 0, 98])
    copies.copy_bytes(begins, np.array([3, 0, 4, 2]), out.ctypes.data)
    assert out.tolist() == [50, 51, 52, 0, 1, 2, 3, 98, 99]
