"""Figures of the monitor agree with a stopwatch around the same loop, for every kind of loader."""

import threading
from itertools import islice
from statistics import mean, median
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
from tests.attempts import attempts

BATCH = 4


def wait(seconds):
    begin, event = perf_counter(), threading.Event()
    while (left := seconds - (perf_counter() - begin)) > 0:
        event.wait(left)


class SlowSource(MemorySource):
    """A disk that reads one block at a time, each in at least ``block_seconds``."""

    block_samples = 16

    def __init__(self, samples=480, block_seconds=0.02):
        super().__init__(np.zeros((samples, 4), np.float32))
        self.block_seconds, self.lock = block_seconds, threading.Lock()
        self.took = []  # seconds of each block, by its own clock

    def read(self, start, stop, out):
        with self.lock:
            begin = perf_counter()
            wait(self.block_seconds)
            self.took.append(perf_counter() - begin)
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


BLOCK_RATE, SAMPLE_RATE = 16 / 0.02, 1 / 0.002
READERS = {"threads": 4, "processes": 2, "workers": 2}


def limit(kind):
    """Samples per second that the waits allow at most, on any machine."""
    if kind.startswith("stream"):
        return BLOCK_RATE
    return SAMPLE_RATE * max((n for word, n in READERS.items() if word in kind), default=1)


# loaders that end before their read-ahead is used up: the figures include the start of workers
WITH_START = {"processes, an epoch that is read ahead"}


def close(loader):
    getattr(loader, "close", lambda: None)()


class Timed:
    """The iterator of a loader, with a clock reading for each batch that arrives."""

    def __init__(self, batches, arrivals):
        self._batches, self._arrivals = batches, arrivals

    def __iter__(self):
        return self

    def __next__(self):
        batch = next(self._batches)
        self._arrivals.append((perf_counter(), len(batch)))
        return batch

    def __getattr__(self, name):
        return getattr(self._batches, name)


class Stopwatch:
    """Times the batches of a loader, in whichever loop it is iterated."""

    def __init__(self, loader, monkeypatch):
        self.opened, self.arrivals = None, []
        iterate = type(loader).__iter__

        def timed(loader):
            self.opened = self.opened or perf_counter()
            return Timed(iterate(loader), self.arrivals)

        monkeypatch.setattr(type(loader), "__iter__", timed)

    @property
    def samples(self):
        return sum(samples for _, samples in self.arrivals)

    @property
    def seconds(self):
        return self.arrivals[-1][0] - self.opened

    def rate(self, with_start):
        """Samples per second of the loop; without the start, those after the first batch."""
        if with_start:
            return self.samples / self.seconds
        (first, samples), (last, _) = self.arrivals[0], self.arrivals[-1]
        return (self.samples - samples) / (last - first)


@pytest.mark.parametrize("kind", LOADERS)
@attempts(4)
def test_samples_per_second_is_what_a_stopwatch_says(kind, monkeypatch):
    rates, ratios = [], []
    for _ in range(3):  # a busy machine may disturb one of them
        loader = LOADERS[kind]()
        with monkeypatch.context() as patch:
            stopwatch = Stopwatch(loader, patch)
            try:
                figures = DataLoaderPerformanceMonitor().time_batch_loading(loader, 20)
            finally:
                close(loader)
        rate = figures["samples_per_second"]
        rates.append(rate)
        ratios.append(rate / stopwatch.rate(kind in WITH_START))
        assert figures["num_samples"] == stopwatch.samples
        assert figures["first_batch_time"] <= figures["total_time"] <= stopwatch.seconds
        assert figures["bytes_per_second"] == pytest.approx(16 * rate)
        assert figures["mean_batch_time"] == pytest.approx(BATCH / rate, rel=0.3)
    # batches that were ready must not look like speed, nor the start of workers like slowness
    assert median(rates) < 1.5 * limit(kind)
    assert median(ratios) > 0.4


@pytest.mark.parametrize("kind", LOADERS)
@attempts(4)
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
@attempts(4)
def test_batches_read_before_the_measurement_are_not_counted(kind):
    """A loader in the middle of a run has batches ready, which arrive at once."""
    loader = LOADERS[kind]()
    try:
        run = iter(loader)
        next(run)
        waited = loader.waited_seconds
        if kind != "pass-through":
            state = loader.state_dict()
        rates, firsts = [], []
        for _ in range(3 if kind == "stream" else 1):
            if kind == "stream":
                next(run)
                state, waited = loader.state_dict(), loader.waited_seconds
            wait(0.3)  # until everything that is read ahead is there
            figures = DataLoaderPerformanceMonitor().time_batch_loading(loader)
            assert loader.waited_seconds == waited  # of the run, not of the measurement
            assert kind == "pass-through" or loader.state_dict() == state
            rates.append(figures["samples_per_second"])
            firsts.append(figures["first_batch_time"])
    finally:
        close(loader)
    if kind == "stream":
        assert min(rates) < 1.3 * BLOCK_RATE
        assert min(firsts) > SlowSource().block_seconds


@attempts(4)
def test_chunks_of_a_recording_are_measured_as_the_message_says():
    data, took = np.zeros((400, 4), np.float32), []

    def load(start, end):
        begin = perf_counter()
        wait(0.03)
        took.append(perf_counter() - begin)
        return data[start:end], data[start:end]

    monitor = DataLoaderPerformanceMonitor()
    with RandomChunkLoader(load, 400, chunk_size=20, seed=1) as loader:
        with pytest.raises(BatchError, match=r"iter\(loader.get_next_chunk, \(None, None\)\)"):
            monitor.time_batch_loading(loader)
        loader.start_epoch(num_chunks=20)
        chunks = iter(loader.get_next_chunk, (None, None))
        figures = monitor.time_batch_loading(chunks, 6)
    assert figures["mean_batch_time"] == pytest.approx(mean(took), rel=0.5)
    assert figures["samples_per_second"] == pytest.approx(20 / mean(took), rel=0.5)


@attempts(4)
def test_the_ceiling_sees_the_loading_behind_what_was_read_ahead():
    """The step takes no time: all of the time is loading, however many batches were ready."""
    source = SlowSource()
    with StreamLoader(source, BATCH, window_blocks=8) as loader:
        found = DataLoaderPerformanceMonitor().ceiling(loader, len)
        assert loader.waited_seconds == 0.0
    assert found["loading_share"] > 0.9
    assert found["loaded_seconds_per_batch"] == pytest.approx(mean(source.took) / 4, rel=0.8)


@attempts(4)
def test_loading_that_is_hidden_behind_the_step_is_not_counted():
    found = []
    for _ in range(3):  # a busy machine may disturb one of them
        with stream() as loader:
            found.append(DataLoaderPerformanceMonitor().ceiling(loader, lambda _: wait(0.02)))
    assert min(each["loading_share"] for each in found) < 0.5
    assert min(each["loaded_seconds_per_batch"] for each in found) >= 0.019


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
def test_an_invalid_number_of_batches_is_refused(count):
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
def test_a_loader_without_batches_is_refused(loader, tmp_path):
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
def test_invalid_configurations_are_refused(configs):
    with pytest.raises(ConfigError, match="configs must be a list of one or more dicts"):
        DataLoaderPerformanceMonitor().benchmark_configurations(torch.zeros(9), 2, configs)


def test_a_path_is_not_a_dataset_to_benchmark(tmp_path):
    for path in ("x.zarr", tmp_path, b"abc"):
        with pytest.raises(PlanError, match="dataset must be a dataset, got"):
            DataLoaderPerformanceMonitor().benchmark_configurations(path, 2)


@pytest.mark.parametrize("cores", [True, 0, -1, 2.0, "2", None])
def test_default_configurations_need_cores(cores):
    with pytest.raises(ConfigError, match="cores must be"):
        default_configs(cores)
