"""Figures reach loggers through the loggers' own libraries, and are those of the loader."""

import gc
import itertools
import threading
import time
import urllib.request
import weakref

import prometheus_client
import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from penstock import ChunkedDataLoader, ReplayLoader, StreamLoader
from penstock.metrics import Gauges, export_to_opentelemetry, export_to_prometheus

DATA = TensorDataset(torch.arange(640.0).reshape(320, 2))


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(40.0))


def test_gauges_are_rates_since_the_last_reading_and_the_place_of_the_last_batch():
    loader = ChunkedDataLoader(DATA, 8, chunk_size=10, shuffle=True)
    began = time.perf_counter()
    gauges, found = Gauges(loader), []
    after = time.perf_counter()
    for _ in range(6):  # an epoch is four chunks
        for _ in loader:
            time.sleep(0.001)
        before = time.perf_counter()
        found.append(gauges.read())
        ended = time.perf_counter()
        # 80 samples, between the two readings
        assert 80 / (ended - began) <= found[-1]["penstock/samples_per_second"]
        assert found[-1]["penstock/samples_per_second"] <= 80 / (before - after)
        began, after = before, ended
    places = [(each["penstock/epoch"], each["penstock/chunk"]) for each in found]
    assert places == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert [each["penstock/position"] for each in found[:2]] == [72, 152]
    assert all(0 < each["penstock/waiting_share"] < 1 for each in found)
    assert gauges.read()["penstock/samples_per_second"] == 0


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: StreamLoader(DATA.tensors[0].numpy(), 8), 312),
        (lambda: ReplayLoader(Numbers(), batch_size=4, num_workers=0), 9),
        (lambda: ChunkedDataLoader(DATA, 8, sampler=[*range(64)]), None),  # torch decides the order
    ],
)
def test_every_loader_has_gauges(make, place):
    loader = make()
    gauges = Gauges(loader)
    list(loader)
    found = gauges.read()
    assert found["penstock/samples_per_second"] > 0
    assert found.get("penstock/position") == place


def test_prometheus_reads_the_counts_of_the_loader_over_http():
    registry = prometheus_client.CollectorRegistry()
    train, val = ChunkedDataLoader(DATA, 8, executor="threads"), ChunkedDataLoader(DATA, 16)
    export_to_prometheus({"train": train, "val": val}, registry)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    try:
        for number, _ in enumerate(train):
            if number == 9:
                break
        address = f"http://127.0.0.1:{server.server_port}/metrics"
        text = urllib.request.urlopen(address, timeout=10).read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        train.close()
    found = {
        (sample.name, sample.labels["loader"], sample.labels.get("stage", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["penstock_batches_total", "train", ""] == 10
    assert found["penstock_samples_total", "train", ""] == 80
    assert found["penstock_samples_total", "val", ""] == 0
    assert found["penstock_waiting_seconds_total", "train", ""] == pytest.approx(
        train.waited_seconds
    )
    assert found["penstock_position", "train", ""] == 72
    assert found["penstock_stage_seconds_total", "train", "read"] > 0
    assert ("penstock_epoch", "val", "") not in found  # no batch yet


def test_opentelemetry_reads_the_counts_of_the_loader():
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    loader = ChunkedDataLoader(DATA, 8)
    export_to_opentelemetry({"train": loader}, provider)
    list(loader)
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    found = {
        (metric.name, point.attributes.get("stage", "")): point
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    provider.shutdown()
    assert scope.scope.name == "penstock"
    assert found["penstock.samples", ""].value == 320
    assert found["penstock.samples", ""].attributes == {"loader": "train", "rank": "0"}
    assert found["penstock.waiting", ""].value == pytest.approx(loader.waited_seconds)
    assert found["penstock.position", ""].value == 312
    assert found["penstock.stage", "read"].value > 0


def test_counters_never_decrease_while_they_are_read_in_another_thread():
    loader = ChunkedDataLoader(DATA, 1)
    collector = export_to_prometheus({"train": loader}, prometheus_client.CollectorRegistry())
    done, seen = threading.Event(), []

    def watch():
        while not done.is_set():
            counters = [family.samples[0].value for family in collector.collect() if family.samples]
            seen.append(counters[:4])

    thread = threading.Thread(target=watch)
    thread.start()
    for _ in range(20):
        list(loader)
    done.set()
    thread.join()
    assert len(seen) > 5
    for before, after in itertools.pairwise(seen):
        assert all(a <= b for a, b in zip(before, after, strict=True))


def test_an_export_does_not_keep_a_loader_alive():
    loader = ChunkedDataLoader(DATA, 8)
    registry = prometheus_client.CollectorRegistry()
    export_to_prometheus({"train": loader}, registry)
    list(loader)
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    assert registry.get_sample_value(
        "penstock_samples_total", {"loader": "train", "rank": "0"}
    ) == len(DATA)


def test_what_is_no_loader_of_penstock_is_refused():
    with pytest.raises(TypeError, match=r"a loader of Penstock.*got DataLoader"):
        Gauges(DataLoader(DATA))
    with pytest.raises(TypeError, match=r"a loader of Penstock.*got DataLoader"):
        export_to_prometheus({"train": DataLoader(DATA)})
