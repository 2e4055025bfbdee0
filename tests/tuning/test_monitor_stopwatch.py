"""Figures agree with a stopwatch around the loop, for every kind of loader."""

import threading
from itertools import islice
from time import perf_counter

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from penstock import ChunkedDataLoader, RandomChunkLoader, StreamLoader
from penstock.errors import BatchError, ConfigError, PlanError
from penstock.metrics import Delivery, steady
from penstock.sources import MemorySource
from penstock.tuning import DataLoaderPerformanceMonitor
from penstock.tuning.monitor import default_configs

BATCH = 4


def wait(seconds):
    begin, event = perf_counter(), threading.Event()
    while (left := seconds - (perf_counter() - begin)) > 0:
        event.wait(left)


class SlowSource(MemorySource):
    """Every block takes as long, whichever thread reads it: one disk with one head."""

    block_samples = 16

    def __init__(self, samples=480, block_seconds=0.02):
        super().__init__(np.zeros((samples, 4), np.float32))
        self.block_seconds, self.head = block_seconds, threading.Lock()

    def read(self, start, stop, out):
        with self.head:
            wait(self.block_seconds)
        super().read(start, stop, out)

    def view(self, start, stop):
        return None


class Slow(Dataset):
    def __init__(self, samples=400, seconds=0.002):
        self.samples, self.seconds = samples, seconds

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        wait(self.seconds)
        return torch.full((4,), float(index))


class SlowIterable(IterableDataset):
    def __iter__(self):
        for index in range(400):
            wait(0.002)
            yield torch.full((4,), float(index))


def stream(**options):
    return StreamLoader(SlowSource(), BATCH, window_blocks=8, **options)


LOADERS = {
    "stream": stream,
    "stream in storage order": lambda: stream(shuffle=False),
    "stream, an epoch within one window": lambda: StreamLoader(SlowSource(96), BATCH),
    "stream, chunks shorter than a window": lambda: stream(chunk_size=5),
    "stream, evaluation": lambda: stream(evaluation=True),
    "inline": lambda: ChunkedDataLoader(Slow(), BATCH),
    "threads": lambda: ChunkedDataLoader(Slow(), BATCH, executor="threads", threads=4),
    "threads, an epoch that is read ahead": lambda: ChunkedDataLoader(
        Slow(24), BATCH, executor="threads", threads=4
    ),
    "processes": lambda: ChunkedDataLoader(Slow(), BATCH, num_workers=2),
    "processes, an epoch that is read ahead": lambda: ChunkedDataLoader(
        Slow(24), BATCH, num_workers=2, prefetch_factor=4
    ),
    "pass-through": lambda: ChunkedDataLoader(Slow(), BATCH, sampler=RandomSampler(range(400))),
    "pass-through, workers": lambda: ChunkedDataLoader(
        Slow(), BATCH, sampler=RandomSampler(range(400)), num_workers=2
    ),
    "pass-through, iterable": lambda: ChunkedDataLoader(SlowIterable(), BATCH),
    "torch": lambda: DataLoader(Slow(), BATCH),
    "torch, workers": lambda: DataLoader(Slow(), BATCH, num_workers=2),
}


def close(loader):
    getattr(loader, "close", lambda: None)()


def stopwatch(loader):
    """Samples a second of a loop that runs for as many epochs as a steady figure needs.

    The first batch, with which workers start, is apart; the loop ends with a batch that is waited
    for, because it ends with an epoch and the next one is not asked for.
    """
    samples, begin = 0, None
    while begin is None or perf_counter() - begin < 0.8:
        for batch in loader:
            begin = begin or perf_counter()
            samples += len(batch)
    return samples / (perf_counter() - begin)


@pytest.mark.parametrize("kind", LOADERS)
def test_samples_per_second_is_what_a_stopwatch_says(kind):
    loader = LOADERS[kind]()
    try:
        figures = DataLoaderPerformanceMonitor().time_batch_loading(loader)
    finally:
        close(loader)
    loader = LOADERS[kind]()
    try:
        truth = stopwatch(loader)
    finally:
        close(loader)
    # wrong figures were wrong a hundredfold; a busy machine makes either side slower for a moment
    assert truth / 2.5 < figures["samples_per_second"] < 2.5 * truth
    rate = figures["samples_per_second"]
    assert figures["bytes_per_second"] == pytest.approx(16 * rate)
    assert figures["mean_batch_time"] == pytest.approx(BATCH / rate, rel=0.3)
    total = figures["total_time"]
    assert total >= figures["first_batch_time"] and figures["num_samples"] / total < 2.5 * truth


@pytest.mark.parametrize("kind", LOADERS)
def test_waited_seconds_is_what_a_stopwatch_says(kind):
    loader = LOADERS[kind]()
    if not hasattr(loader, "waited_seconds"):
        pytest.skip("torch's own loader does not count it")
    begin = perf_counter()
    try:
        batches = iter(loader)
        for _ in islice(batches, 12):
            pass
    finally:
        waited = perf_counter() - begin
        close(loader)
        del batches
    assert 0.5 * waited < loader.waited_seconds <= waited


@pytest.mark.parametrize("kind", ["stream", "threads", "processes", "pass-through"])
def test_batches_read_before_the_measurement_are_not_counted(kind):
    """A loader in the middle of a run has batches ready, for which nobody would wait."""
    loader = LOADERS[kind]()
    try:
        run = iter(loader)
        next(run)
        waited = loader.waited_seconds
        if kind != "pass-through":
            state = loader.state_dict()
        wait(0.3)  # everything that is read ahead is there
        figures = DataLoaderPerformanceMonitor().time_batch_loading(loader)
        assert loader.waited_seconds == waited  # of the run, not of the measurement
        assert kind == "pass-through" or loader.state_dict() == state
    finally:
        close(loader)
    if kind == "stream":
        slowest = 16 / SlowSource().block_seconds  # samples a second of the one disk
        assert figures["samples_per_second"] < 1.3 * slowest
        assert figures["first_batch_time"] > SlowSource().block_seconds


def test_chunks_of_a_recording_are_measured_as_the_message_says():
    data = np.zeros((400, 4), np.float32)

    def load(start, end):
        wait(0.03)
        return data[start:end], data[start:end]

    monitor = DataLoaderPerformanceMonitor()
    with RandomChunkLoader(load, 400, chunk_size=20, seed=1) as loader:
        with pytest.raises(BatchError, match=r"iter\(loader.get_next_chunk, \(None, None\)\)"):
            monitor.time_batch_loading(loader)
        loader.start_epoch(num_chunks=20)
        chunks = iter(loader.get_next_chunk, (None, None))
        figures = monitor.time_batch_loading(chunks, 6)
    assert figures["mean_batch_time"] == pytest.approx(0.03, rel=0.5)
    assert figures["samples_per_second"] == pytest.approx(20 / 0.03, rel=0.5)


def test_the_ceiling_sees_the_loading_behind_what_was_read_ahead():
    """The steps take nothing: all of the time is loading, however many batches were ready."""
    with stream() as loader:
        found = DataLoaderPerformanceMonitor().ceiling(loader, len)
        assert loader.waited_seconds == 0.0
    assert found["loading_share"] > 0.9
    assert found["loaded_seconds_per_batch"] == pytest.approx(0.02 / 4, rel=0.8)


def test_what_is_hidden_behind_the_step_is_no_loading():
    with stream() as loader:
        found = DataLoaderPerformanceMonitor().ceiling(loader, lambda _: wait(0.02))
    assert found["loading_share"] < 0.5
    assert found["loaded_seconds_per_batch"] >= 0.019


# -- the rule itself


@pytest.mark.parametrize("burst", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("bursts", [2, 3, 5])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_bursts_of_any_size_give_the_rate_at_which_they_are_read(burst, bursts, more):
    """A burst of ready batches arrives each second, after a start of three more."""
    ready = [Delivery(0.0, 2, 8)] * (burst - 1)
    arrived = [Delivery(4.0, 2, 8), *ready]
    for _ in range(bursts):
        arrived += [Delivery(1.0, 2, 8), *ready]
    counted = steady(arrived[: len(arrived) - min(more, burst - 1)])
    assert sum(each.samples for each in counted) / sum(each.seconds for each in counted) == (
        pytest.approx(2 * burst)
    )


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_equal_waits_all_count_after_what_was_in_flight(ahead):
    arrived = [Delivery(0.1, 1, 1)] * 20
    assert len(steady(arrived, ahead)) == 20 - ahead


# -- arguments

BAD_COUNTS = [True, 0, -1, 1.5, "3", None, 2**63, float("nan")]


@pytest.mark.parametrize("count", BAD_COUNTS)
def test_a_number_of_batches_that_is_none_is_refused(count):
    monitor, loader = DataLoaderPerformanceMonitor(), [torch.zeros(2)] * 3
    with pytest.raises(BatchError, match="num_batches must be"):
        monitor.time_batch_loading(loader, count)
    with pytest.raises(BatchError, match="num_batches must be"):
        monitor.ceiling(loader, len, count)
    with pytest.raises(BatchError, match="num_batches must be"):
        monitor.benchmark_configurations(torch.zeros(9), 2, [{}], num_batches=count)
    with pytest.raises(ConfigError, match="batch_size must be"):
        monitor.benchmark_configurations(torch.zeros(9), count, [{}])


@pytest.mark.parametrize("loader", ["x.zarr", b"x", 3, None])
def test_what_has_no_batches_is_refused(loader, tmp_path):
    monitor = DataLoaderPerformanceMonitor()
    for measure in (monitor.time_batch_loading, lambda x: monitor.ceiling(x, len)):
        with pytest.raises(BatchError, match="must be an iterable of batches"):
            measure(loader)
    with pytest.raises(BatchError, match="must be an iterable of batches"):
        monitor.time_batch_loading(tmp_path / "x.npy")
    with pytest.raises(BatchError, match="step must be callable"):
        monitor.ceiling([torch.zeros(2)], None)


def test_the_message_about_a_path_leads_to_a_measurement(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((64, 3), np.float32))
    with StreamLoader(tmp_path / "x.npy", 4) as loader:
        assert DataLoaderPerformanceMonitor().time_batch_loading(loader)["num_samples"] >= 40


@pytest.mark.parametrize("configs", [[], {}, "ab", [1], [{"num_workers": 0}, None], 3, ({},) * 0])
def test_configurations_that_are_none_are_refused(configs):
    with pytest.raises(ConfigError, match="configs must be a list of one or more dicts"):
        DataLoaderPerformanceMonitor().benchmark_configurations(torch.zeros(9), 2, configs)


def test_a_path_is_no_dataset_to_benchmark(tmp_path):
    for path in ("x.zarr", tmp_path, b"abc"):
        with pytest.raises(PlanError, match="dataset must be a dataset, got"):
            DataLoaderPerformanceMonitor().benchmark_configurations(path, 2)


@pytest.mark.parametrize("cores", [True, 0, -1, 2.0, "2", None])
def test_default_configurations_need_cores(cores):
    with pytest.raises(ConfigError, match="cores must be"):
        default_configs(cores)
