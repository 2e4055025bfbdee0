"""The monitor measures the time of ``next()``, and leaves everything as it was."""

import json
import multiprocessing
import random
import sys
import threading
from time import perf_counter, thread_time

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from penstock import ChunkedDataLoader
from penstock.errors import BatchError
from penstock.testing import same_batch
from penstock.tuning import DataLoaderPerformanceMonitor
from penstock.tuning.monitor import default_configs


class Slow(Dataset):
    """Samples that take at least ``seconds`` each."""

    def __init__(self, seconds, samples=100):
        self.seconds, self.samples = seconds, samples
        self.took = []  # each sample's own clock

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        begin = perf_counter()
        event = threading.Event()
        while (left := self.seconds - (perf_counter() - begin)) > 0:
            event.wait(left)
        self.took.append(perf_counter() - begin)
        return torch.full((4,), float(index))


class Ambient(Slow):
    def __getitem__(self, index):
        return torch.rand(2) + np.random.random() + random.random()


class Busy(Slow):
    def __getitem__(self, index):
        begin = thread_time()
        while thread_time() - begin < self.seconds:
            sum(range(100))
        return torch.zeros(1)


class Few(IterableDataset):
    def __iter__(self):
        return iter(torch.zeros(5, 2))


@pytest.fixture
def monitor():
    return DataLoaderPerformanceMonitor()


@pytest.mark.parametrize("kind", [ChunkedDataLoader, DataLoader])
def test_a_loader_of_100_ms_a_batch_is_measured_as_100_ms(monitor, kind):
    dataset = Slow(0.1)
    figures = monitor.time_batch_loading(kind(dataset, 1), num_batches=6)
    # a busy machine wakes late, so the sample's own clock is the reference
    assert figures["p50"] == pytest.approx(np.median(dataset.took[1:6]), rel=0.1)
    assert figures["mean_batch_time"] == pytest.approx(np.mean(dataset.took[1:6]), rel=0.1)
    assert min(figures["p50"], figures["mean_batch_time"], figures["first_batch_time"]) >= 0.1
    assert figures["total_time"] >= 0.6
    assert figures["samples_per_second"] == pytest.approx(1 / figures["mean_batch_time"])
    assert figures["bytes_per_second"] == pytest.approx(16 / figures["mean_batch_time"])


def test_time_between_two_batches_is_not_counted(monitor, monkeypatch):
    """The clock runs during ``next()``: not before it, and not after."""
    clock = [0.0]

    def advance(seconds, result=None):
        clock[0] += seconds
        return result

    def batches():
        for _ in range(50):
            advance(1.0)
            yield torch.zeros(3)

    module = sys.modules[DataLoaderPerformanceMonitor.__module__]
    monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(module, "bytes_of", lambda _: advance(100.0, 12))
    monkeypatch.setattr(module, "tree_cpu_seconds", lambda: advance(100.0, 0.0))
    figures = monitor.time_batch_loading(batches(), num_batches=50)
    assert figures["mean_batch_time"] == figures["p99"] == 1.0
    assert figures["total_time"] == figures["num_batches"] == 50


class OpensLate(Slow):
    """Needs some time for its first sample in each process."""

    opened = False

    def __getitem__(self, index):
        if not self.opened:
            threading.Event().wait(0.4)
            self.opened = True
        return super().__getitem__(index)


def test_the_start_of_workers_is_reported_separately(monitor):
    with ChunkedDataLoader(OpensLate(0.001), 2, num_workers=1) as loader:
        figures = monitor.time_batch_loading(loader, 10)
    assert figures["first_batch_time"] >= 0.4 > figures["mean_batch_time"]


def test_figures_are_plain_numbers(monitor):
    figures = monitor.time_batch_loading(ChunkedDataLoader(torch.zeros(40, 3), 4))
    assert json.loads(json.dumps(figures)) == figures
    assert figures["p50"] <= figures["p95"] <= figures["p99"]
    assert (figures["num_batches"], figures["num_samples"]) == (10, 40)
    assert figures["memory_bytes"] > 10**6


def test_every_measurement_is_added_to_the_metrics(monitor):
    monitor.time_batch_loading(ChunkedDataLoader(torch.zeros(40), 4), 3)
    monitor.time_batch_loading(ChunkedDataLoader(torch.zeros(40), 4), 2)
    assert len(monitor.metrics["batch_loading_times"]) == 5
    assert len(monitor.metrics["memory_usage"]) == 2
    assert bool(monitor.metrics["gpu_utilization"]) is torch.cuda.is_available()


def test_a_shorter_loader_is_measured_as_far_as_it_goes(monitor):
    for loader in (
        ChunkedDataLoader(torch.zeros(9), 4),
        DataLoader(torch.zeros(9), 4),
        ChunkedDataLoader(Few(), 2),
    ):
        assert monitor.time_batch_loading(loader, 10)["num_batches"] == 3
    single = monitor.time_batch_loading(ChunkedDataLoader(torch.zeros(3), 4))
    assert single["num_batches"] == 1 and single["mean_batch_time"] == single["first_batch_time"]


def test_a_loader_without_a_batch_is_an_error(monitor):
    for loader in ([], DataLoader(torch.zeros(3), 4, drop_last=True)):
        with pytest.raises(BatchError, match="cannot measure: the loader yields no batch"):
            monitor.time_batch_loading(loader)
        with pytest.raises(BatchError, match="cannot measure: the loader yields no batch"):
            monitor.ceiling(loader, len)
    with pytest.raises(BatchError, match="num_batches"):
        monitor.time_batch_loading([1], 0)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"executor": "threads"}])
def test_measuring_uses_up_no_batch_of_the_run(monitor, options):
    def run(measure):
        with ChunkedDataLoader(torch.arange(40), 4, chunk_size=6, **options) as loader:
            batches = iter(loader)
            found = [next(batches)]
            if measure:
                state = loader.state_dict()
                monitor.time_batch_loading(loader, 4)
                monitor.ceiling(loader, len, 3)
                assert loader.state_dict() == state
            return found + list(batches) + list(loader)

    assert same_batch(run(measure=True), run(measure=False))


def test_measuring_leaves_generators_as_they_were(monitor):
    def draws(measure):
        torch.manual_seed(1), np.random.seed(1), random.seed(1)
        own = torch.Generator().manual_seed(5)
        loader = DataLoader(Ambient(0, 12), 3, sampler=RandomSampler(range(12), generator=own))
        if measure:
            monitor.time_batch_loading(loader, 2)
            monitor.time_batch_loading(ChunkedDataLoader(Ambient(0, 12), 3), 2)
        return [*loader, *ChunkedDataLoader(Ambient(0, 12), 3)]

    assert same_batch(draws(measure=True), draws(measure=False))


def test_workers_of_a_stock_loader_end_with_the_measurement(monitor):
    monitor.time_batch_loading(DataLoader(Slow(0.0), 2, num_workers=1), 3)
    assert multiprocessing.active_children() == []


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_benchmark_ends_each_loaders_workers_before_the_next(monitor, capsys):
    configs = [{"num_workers": 3, "persistent_workers": True}, {"num_workers": 0}]
    children = len(psutil.Process().children())
    results = monitor.benchmark_configurations(Counting(), 4, configs, num_batches=2)
    assert results["config_2"]["num_workers"] == 0
    assert Counting.alive == children  # as many as there were before the first one
    assert results["config_1"]["persistent_workers"] is True
    assert capsys.readouterr().out.startswith("Testing configuration 1/2: {'num_workers': 3")


class Counting(Slow):
    """Counts the children of this process when it is read here."""

    alive = None

    def __init__(self):
        super().__init__(0.0)

    def __getitem__(self, index):
        if multiprocessing.parent_process() is None:
            Counting.alive = len(psutil.Process().children())
        return torch.zeros(1)


def test_the_default_configurations_are_the_guides_capped_at_the_cores():
    assert [config["num_workers"] for config in default_configs(32)] == [0, 4, 8, 12]
    assert [config["num_workers"] for config in default_configs(2)] == [0, 2, 2, 2]
    assert [config.get("prefetch_factor") for config in default_configs(2)] == [None, None, 4, 6]


def test_the_ceiling_shows_whether_loading_is_the_bottleneck(monitor):
    event = threading.Event()
    quick = ChunkedDataLoader(torch.zeros(64), 4)
    found = [monitor.ceiling(quick, lambda _: event.wait(0.01)) for _ in range(3)]
    assert min(each["loading_share"] for each in found) < 0.3  # a busy machine may disturb some
    figures = monitor.ceiling(ChunkedDataLoader(Slow(0.01), 2), len, 5)
    assert figures["loading_share"] > 0.9
    assert figures["loaded_seconds_per_batch"] >= 0.02 > figures["cached_seconds_per_batch"]
    alone = monitor.ceiling(ChunkedDataLoader(Slow(0.01, 2), 2), len)
    assert alone["loading_share"] > 0.9  # of a loader with one batch, too


@pytest.mark.parametrize("workers", [0, 1])
def test_processor_time_of_workers_counts(monitor, workers):
    with ChunkedDataLoader(Busy(0.01), 4, num_workers=workers) as loader:
        figures = monitor.time_batch_loading(loader, 8)
    assert 0.008 < figures["cpu_seconds_per_sample"] < 0.1


def test_batches_of_any_form_are_counted(monitor):
    batch = {"x": np.zeros((6, 2), np.float32), "y": [torch.zeros(6)]}
    figures = monitor.time_batch_loading([batch] * 2)
    assert figures["num_samples"] == 12
    assert monitor.time_batch_loading([["a", "b", "c"]] * 2)["num_samples"] == 6
    assert monitor.time_batch_loading([TensorDataset(torch.zeros(2))] * 2)["num_samples"] == 2
