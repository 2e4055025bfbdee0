"""Figures are plain numbers, of this process and of its workers."""

import multiprocessing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BatchError
from penstock.metrics import Delivery, summarize, tree_bytes, tree_cpu_seconds
from penstock.metrics.usage import tree_pids

deliveries = st.lists(
    st.builds(Delivery, st.floats(0, 100), st.integers(0, 512), st.integers(0, 10**9)),
    min_size=1,
    max_size=40,
)


@given(deliveries)
def test_the_first_batch_is_apart_and_the_rest_is_numpys(all_of_them):
    figures = summarize(all_of_them)
    steady = [each.seconds for each in all_of_them[1:] or all_of_them]
    assert figures["first_batch_time"] == all_of_them[0].seconds
    assert figures["mean_batch_time"] == pytest.approx(np.mean(steady))
    assert figures["std_batch_time"] == pytest.approx(np.std(steady))
    assert min(steady) <= figures["p50"] <= figures["p95"] <= figures["p99"] <= max(steady)
    assert all(type(value) is float for value in figures.values())


def test_rates_are_of_the_batches_after_the_first():
    figures = summarize([Delivery(9.0, 100, 1000), Delivery(1.0, 10, 50), Delivery(3.0, 30, 150)])
    assert (figures["samples_per_second"], figures["bytes_per_second"]) == (10.0, 50.0)


def test_what_took_no_time_has_a_rate_all_the_same():
    assert summarize([Delivery(0.0, 1, 1)])["samples_per_second"] > 0


def work(started, finish):
    sum(range(3_000_000))
    started.set()
    finish.wait()


def test_memory_and_processor_time_count_workers_too():
    context = multiprocessing.get_context("fork")
    started, finish = context.Event(), context.Event()
    alone, cpu = tree_bytes(), tree_cpu_seconds()
    worker = context.Process(target=work, args=(started, finish))
    worker.start()
    try:
        assert started.wait(20)
        assert worker.pid in tree_pids()
        assert tree_cpu_seconds() - cpu > 0.01
        assert tree_bytes() < 3 * alone  # pages that both share are counted once
    finally:
        finish.set()
        worker.join()
    assert worker.pid not in tree_pids()


def test_processor_time_of_workers_that_ended_still_counts():
    context = multiprocessing.get_context("fork")
    started, finish = context.Event(), context.Event()
    finish.set()
    cpu = tree_cpu_seconds()
    worker = context.Process(target=work, args=(started, finish))
    worker.start()
    worker.join()
    assert tree_cpu_seconds() - cpu > 0.01


def test_no_deliveries_are_refused():
    with pytest.raises(BatchError, match="measure at least one batch"):
        summarize([])


@pytest.mark.parametrize(
    "fields",
    [(-1.0, 1, 1), (float("nan"), 1, 1), ("1", 1, 1), (True, 1, 1), (None, 1, 1)]
    + [(1.0, wrong, 1) for wrong in (-1, 1.5, True, "1", None)]
    + [(1.0, 1, wrong) for wrong in (-1, 1.5, True, "1", None)],
)
def test_a_delivery_that_cannot_be_is_refused(fields):
    with pytest.raises(BatchError, match=r"(seconds|samples|nbytes) must be"):
        Delivery(*fields)
