"""``tune="online"`` finds a good number of threads within its budget, and changes no batch."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader, MemorySource, PlanError, StreamLoader
from penstock.loaders import online
from penstock.loaders.online import BATCHES, ROUNDS, SECONDS, OnlineTuner, ReaderSearch
from penstock.loaders.options import MOST_READERS

ROWS = np.arange(16_000, dtype=np.float32).reshape(4000, 4)


def speed_of(readers, parallel, contention, ceiling):
    """Samples per second of storage that serves some at a time, and suffers from more."""
    useful = min(readers, parallel)
    return min(ceiling, 100 * useful**0.9) / (1 + contention * max(0, readers - parallel))


@given(
    *(st.integers(1, 24), st.floats(0, 0.3), st.floats(50, 3000)),
    st.integers(1, 16),
    st.integers(1, 16),
    st.integers(0, 1 << 20),
)
def test_the_speed_is_within_a_tenth_of_the_best(parallel, contention, ceiling, begin, most, seed):
    rng = np.random.default_rng(seed)
    search = ReaderSearch(begin, max(begin, most))

    def speed(n):
        return speed_of(n, parallel, contention, ceiling)

    measurements, busy = 0, int(rng.integers(len(search.scale)))
    while not search.settled:
        # for some time, another program needs the machine
        slow = 0.3 if busy <= measurements < busy + len(search.scale) // 2 else 1.0
        search.add(speed(search.readers) * rng.uniform(0.99, 1.01) * slow)
        measurements += 1
        assert measurements <= ROUNDS * len(search.scale) and search.readers <= max(begin, most)
    assert speed(search.readers) >= 0.9 * max(map(speed, search.scale))


def test_the_search_begins_again_when_the_speed_falls():
    search = ReaderSearch(2, 16)
    while not search.settled:
        search.add(100.0 * min(2, search.readers))
    assert search.readers == 2
    for speed in (20.0, 30.0, 190.0, 20.0, 30.0):  # others need the machine now and then
        search.add(speed)
        assert search.settled
    while not search.settled or search.readers == 2:  # the store is remote now
        search.add(10.0 * search.readers)
    assert search.readers >= 12


def simulated(tuner, read_seconds, step, batches=5000):
    """Deliver batches of 8 samples that one reader takes ``read_seconds`` for; some are ready."""
    for number in range(batches):
        each = max(0.0, read_seconds / tuner.readers - step)
        bursts = (0.0, 0.0, 0.0, 4 * each)  # a round of four
        tuner.note(bursts[number % 4], step, 8)
        if tuner.settled:
            return


def test_ready_batches_do_not_look_like_speed():
    tuner = OnlineTuner(2, 8)
    simulated(tuner, read_seconds=0.08, step=0.005)
    assert tuner.settled and tuner.readers == 8


def test_nothing_changes_where_training_does_not_wait():
    tuner = OnlineTuner(2, 8)
    simulated(tuner, read_seconds=0.002, step=0.01)
    assert tuner.readers == 2 and not tuner.settled


def test_chunks_shorter_than_a_measurement_are_added_up():
    tuner = OnlineTuner(2, 8)
    for _ in range(2000):
        for batch in range(6):
            each = 0.08 / tuner.readers
            tuner.note(each, None if batch == 0 else 0.001, 8)
        if tuner.settled:
            break
    assert tuner.settled and tuner.readers == 8


def test_pauses_are_not_measured():
    tuner = OnlineTuner(4, 4 + MOST_READERS)
    for _ in range(3 * BATCHES):
        tuner.note(SECONDS, None, 8)
    assert tuner.readers == 4 and not tuner.settled


# -- loaders


class SlowSource(MemorySource):
    """Storage that serves many readers at a time, each after a while."""

    def view(self, start, stop):
        time.sleep(0.02)
        return super().view(start, stop)


class SlowDataset(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.tensor(ROWS[index])


def stream(**options):
    return StreamLoader(SlowSource(ROWS), 100, block_samples=100, window_blocks=4, **options)


def threads(**options):
    return ChunkedDataLoader(SlowDataset(), 4, shuffle=True, executor="threads", **options)


@pytest.mark.parametrize(("make", "epochs"), [(stream, 8), (threads, 4)])
def test_more_readers_are_used_and_no_batch_changes(make, epochs, monkeypatch):
    monkeypatch.setattr(online, "SECONDS", 0.05)
    with make(threads=16) as loader:
        expected = [list(loader) for _ in range(epochs)]
    with make(threads=2, tune="online") as loader:
        found = [list(loader) for _ in range(epochs)]
        assert loader.snapshot().batches == sum(map(len, found))
        for _ in range(20):
            if loader._tuner.settled:
                break
            list(loader)
        tuned = loader.snapshot()
    for one, other in zip(expected, found, strict=True):
        assert len(one) == len(other) and all(map(torch.equal, one, other))
    assert tuned.settings["threads"] >= 4  # twice the speed of two, at least


def test_the_budget_limits_the_readers(monkeypatch):
    monkeypatch.setattr(online, "SECONDS", 0.05)
    batch_bytes, ahead = 4 * ROWS[0].nbytes, 2
    with threads(tune="online", threads=1, memory_budget=2 * ahead * batch_bytes) as loader:
        assert {loader.snapshot().settings["threads"] for _ in loader} == {1, 2}  # all are tried
    budget = 300_000
    tried = set()
    with stream(tune="online", threads=1, memory_budget=budget) as loader:
        for _ in range(20):
            tried |= {loader.snapshot().settings["threads"] for _ in loader}
            if loader._tuner.settled:
                break
    most = max(tried)
    assert most > 1 and stream(threads=most, memory_budget=budget).buffer_bytes <= budget


def test_a_number_that_was_found_is_kept_when_the_stream_is_opened_again(monkeypatch):
    monkeypatch.setattr(online, "SECONDS", 0.05)
    with threads(threads=1, tune="online") as loader:
        for _ in loader:
            found = loader.snapshot().settings["threads"]
            if found > 1:
                break
        loader.close()
        monkeypatch.setattr(online, "SECONDS", 1e9)
        list(loader)
        assert loader.snapshot().settings["threads"] == found > 1


@pytest.mark.parametrize("tune", ["on", True, 3, "offline"])
def test_another_value_is_refused(tune):
    with pytest.raises(PlanError, match="tune must be one of 'online'"):
        StreamLoader(ROWS, 10, tune=tune)
    with pytest.raises(PlanError, match="tune must be one of 'online'"):
        threads(tune=tune)


def test_executors_without_threads_are_refused():
    with pytest.raises(PlanError, match="pass executor='threads'"):
        ChunkedDataLoader(SlowDataset(), 4, tune="online")
