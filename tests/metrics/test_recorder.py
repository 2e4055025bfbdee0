"""Figures are exact in their sums, bounded in memory, and the same however they are merged."""

import copy
import json
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from penstock import ChunkedDataLoader, StreamLoader
from penstock.domains.recording.chunk_loader import RandomChunkLoader
from penstock.metrics import Histogram, Probe, Recorder, Snapshot, merge, recorder
from penstock.metrics.recorder import COLUMNS, SLOTS

durations = st.lists(st.floats(0, 10_000), max_size=60)


@given(durations, durations)
def test_a_histogram_adds_up_and_merges(ones, others):
    one, other = Histogram(ones), Histogram(others)
    merged, whole = one + other, Histogram([*ones, *others])
    assert merged.buckets == whole.buckets and merged.count == len(ones) + len(others)
    assert merged.total == pytest.approx(sum([*ones, *others]))
    assert merged.longest == max([*ones, *others], default=0.0)
    assert Histogram.of(json.loads(json.dumps(merged.to_dict()))) == merged


@given(st.lists(st.floats(1e-6, 10_000), min_size=1), st.floats(0, 1))
def test_quantiles_are_within_an_eighth(seconds, share):
    exact = np.quantile(seconds, share, method="inverted_cdf")
    found = Histogram(seconds).quantile(share)
    assert found == pytest.approx(exact, rel=1 / 8, abs=2e-7)


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(recorder, "perf_counter", found)
    monkeypatch.setattr(recorder._thread, "state", recorder._State())  # of the real clock
    return found


@given(st.lists(st.tuples(st.floats(0, 2000), st.floats(0, 2000)), min_size=1, max_size=30))
def test_waiting_and_steps_add_up_whatever_their_size(times):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(recorder, "perf_counter", clock)
        made = Recorder()
        for wait, step in times:
            made.request()
            clock.now += wait
            made.receive(4)
            clock.now += step
        made.request()
        made.receive(4)
        found = made.snapshot()
    waits, steps = (sum(each) for each in zip(*times, strict=True))
    assert found.batches == len(times) + 1 and found.samples == 4 * found.batches
    assert found.of("wait").total == pytest.approx(waits, abs=1e-6)
    assert found.of("step").total == pytest.approx(steps, abs=1e-6)
    assert len(found.slots) <= SLOTS
    rows = np.array(found.slots).sum(axis=0)
    for stage in ("wait", "step"):  # what is not noted yet came in quick succession
        assert rows[COLUMNS.index(stage)] == pytest.approx(found.of(stage).total, abs=1e-2)


def test_a_stage_inside_of_another_counts_once(clock):
    made = Recorder()
    with made.work("thread"), Probe("read", (0, 8)):
        clock.now += 1.0
        with Probe("decode"):
            clock.now += 3.0
    found = made.snapshot()
    assert (found.of("read").total, found.of("decode").total) == (1.0, 3.0)
    assert found.inside == {}
    assert [span[0] for span in found.spans] == ["decode", "read"]


def test_of_short_reads_some_are_noted_with_what_follows_and_every_long_one(clock):
    made = Recorder()
    with made.work("thread"):
        for seconds in [0.0002] * 50 + [1.0]:
            with Probe("read", (0, 8)):
                clock.now += seconds
                with Probe("decode"):
                    clock.now += seconds
            with Probe("collate"):
                clock.now += 2 * seconds
    found = made.snapshot()
    counts = [found.of(stage).count for stage in ("read", "decode", "collate")]
    assert len(set(counts)) == 1 and 2 <= counts[0] < 20
    assert found.of("read").longest == 1.0
    assert found.of("decode").total == pytest.approx(found.of("read").total)
    assert found.of("collate").total == pytest.approx(2 * found.of("read").total)


def test_a_pause_is_no_step_and_a_long_wait_is_a_stall(clock):
    made = Recorder()
    for wait in (1.0, 0.001, 5.0):
        made.request()
        clock.now += wait
        made.receive(1, (2, 30))
        clock.now += 1.0
    made.pause()
    clock.now += 100.0  # a validation
    made.request()
    made.receive(1)
    found = made.snapshot(rank=7)
    assert found.of("step").total == pytest.approx(2.0)
    (stall,) = found.stalls
    assert (stall["seconds"], stall["rank"], stall["epoch"]) == (5.0, 7, 2)


def test_the_last_step_is_known_for_quick_and_for_slow_batches(clock):
    made, found = Recorder(), []
    for seconds in (0.001, 0.002, 1.0, 2.0):
        made.request()
        clock.now += seconds
        made.receive(1)
        found.append(made.last_step)
        clock.now += seconds
    assert found == [None, *map(pytest.approx, (0.001, 0.002, 1.0))]


def test_a_million_batches_take_constant_memory(clock):
    made = Recorder()
    sizes = []
    for many in (20_000, 40_000):
        for _ in range(many):
            made.request()
            with made.work(""), Probe("read"):
                clock.now += 0.5
            made.receive(8)
            clock.now += 0.5
        sizes.append(len(made.snapshot().json()))
    assert sizes[1] < 1.2 * sizes[0] < 1_000_000
    assert sys.getsizeof(made.arrivals) < 10_000


def test_ranks_are_merged_to_one_snapshot(clock):
    found = []
    for rank in range(3):
        made = Recorder()
        made.started = 1000.0 + rank
        made.request()
        clock.now += 0.5
        made.receive(10)
        clock.now += 1.0
        made.request()
        made.receive(10)
        found.append(made.snapshot(rank=rank, world=3))
    merged = merge(found)
    assert (merged.samples, merged.batches, merged.world) == (60, 6, 3)
    assert [each["rank"] for each in merged.ranks] == [0, 1, 2]
    assert merged.waiting == merge(found[::-1]).waiting == 0.0  # only first batches were waited for
    assert np.array(merged.slots)[:, COLUMNS.index("samples")].sum() == 60
    assert Snapshot.of_dict(json.loads(merged.json())) == merged


def test_what_is_off_measures_nothing_and_can_be_switched_on():
    loader = ChunkedDataLoader(TensorDataset(torch.zeros(64, 2)), 8)
    loader.metrics.on = False
    assert len(list(loader)) == 8
    found = loader.snapshot()
    assert found.batches == found.samples == loader.waited_seconds == 0 and not found.spans
    assert "set loader.metrics.on" in loader.verdict()
    batches = iter(loader)
    next(batches)
    loader.metrics.on = True
    assert len(list(batches)) == 7
    assert (loader.snapshot().batches, loader.snapshot().of("step").count) == (7, 6)


def test_stages_are_shown_by_the_profiler():
    rows = np.zeros((400, 4), np.float32)
    with StreamLoader(rows, 100, transform=lambda batch, rng: batch) as loader:
        loader.metrics.profile = True
        with torch.profiler.profile() as profile:
            list(loader)
    assert "penstock.transform" in {event.key for event in profile.key_averages()}


def test_a_copy_of_a_loader_has_its_own_figures():
    loader = ChunkedDataLoader(TensorDataset(torch.zeros(64, 2)), 8)
    list(loader)
    assert copy.deepcopy(loader).snapshot().batches == 0 and loader.snapshot().batches == 8


def test_chunks_of_a_recording_are_measured():
    def load(start, stop):
        time.sleep(0.03)  # longer than reads of which only some are noted
        return np.zeros((stop - start, 2), np.float32), np.zeros((stop - start, 1), np.float32)

    loader = RandomChunkLoader(load, 100, 20, device="cpu")
    with loader:
        loader.start_epoch(5)
        while loader.get_next_chunk()[0] is not None:
            pass
        found = loader.metrics.snapshot()
    assert found.of("read").count == 5 and found.samples == 100
    assert loader.verdict()
