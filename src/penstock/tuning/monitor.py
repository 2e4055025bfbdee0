"""The speed of a loader: the duration of ``next()`` and the samples read per second."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from os import PathLike
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock.arguments import whole_number
from penstock.errors import BatchError, ConfigError
from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.options import check_dataset
from penstock.loaders.pass_through import has_position, preserve_random_state
from penstock.loaders.stream import StreamLoader
from penstock.loaders.workers import end_workers
from penstock.metrics import (
    Delivery,
    Recorder,
    accelerator_memory,
    accelerator_utilization,
    bytes_of,
    samples_of,
    steady,
    summarize,
    tree_bytes,
    tree_cpu_seconds,
)
from penstock.sources.contract import DatasetLike
from penstock.tuning.machine import this_machine

log = logging.getLogger("penstock")

SETTLED_SECONDS = 0.1  # minimum measurement of a loader whose read-ahead is unknown
NO_BATCH = "cannot measure: the loader yields no batch; it is empty, or drop_last drops it"
DEFAULT_CONFIGS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0, "pin_memory": False},
    {"num_workers": 4, "pin_memory": True, "persistent_workers": True},
    {"num_workers": 8, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 4},
    {"num_workers": 12, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 6},
)


class DataLoaderPerformanceMonitor:
    """Measures loaders and collects the results in ``metrics``.

    Measuring does not change a loader: its position, its ``waited_seconds`` and the global random
    generators are the same afterwards, and no batch of the run is consumed.

    >>> monitor = DataLoaderPerformanceMonitor()
    >>> figures = monitor.time_batch_loading([torch.zeros(4)] * 3, num_batches=2)
    >>> figures["num_batches"], figures["num_samples"]
    (2, 8)
    """

    def __init__(self) -> None:
        names = ("batch_loading_times", "gpu_utilization", "memory_usage")
        self.metrics: dict[str, list[float]] = {name: [] for name in names}

    def time_batch_loading(
        self, dataloader: Iterable[Any], num_batches: int = 10
    ) -> dict[str, float]:
        """Return the seconds that ``next()`` takes, and the throughput of an empty loop.

        ``first_batch_time`` is the time of the first batch, including the start of workers and the
        opening of files. All other times and rates are those of the batches after it.

        A loader that reads ahead has batches ready when the first one arrives. It is measured until
        these are used up, and ``samples_per_second`` counts from one batch that had to be waited
        for to another, so that it is the rate at which samples are *read*. This may take more than
        ``num_batches`` batches; a `StreamLoader` is measured at least as long again as its first
        batch took. ``num_batches``, ``num_samples`` and ``total_time`` describe the whole
        measurement.

        If a loader ends before that, the figures are those of a stopwatch around its loop: they
        include the first batch and the start of its workers.

        Args:
            dataloader: Any iterable of batches. An iterator, which can be read only once, is
                consumed.
            num_batches: Number of batches to measure, 1 or more. Fewer are measured if the loader
                is shorter.

        Raises:
            BatchError: There is no batch to measure.
        """
        num_batches = _check_batches(dataloader, num_batches)
        taken, usage, _ = _measure(dataloader, num_batches)
        ahead = read_ahead(dataloader)
        complete = _is_past_read_ahead(taken, ahead)
        if not complete:
            log.info("the loader ended within its read-ahead: the figures include its start")
        elif len(taken) < num_batches:
            log.info("measured %d batches instead of %d: the loader ended", len(taken), num_batches)
        counted = taken[1:] if ahead == 1 else steady(taken, ahead or 1)
        self.metrics["batch_loading_times"] += [each.seconds for each in taken]
        self.metrics["memory_usage"].append(usage["memory_bytes"])
        self.metrics["gpu_utilization"] += accelerator_utilization()
        return {
            **summarize([taken[0], *(counted if complete else taken)]),
            "total_time": sum(each.seconds for each in taken),
            **usage,
            "num_batches": len(taken),
            "num_samples": sum(each.samples for each in taken),
            **accelerator_memory(),
        }

    def benchmark_configurations(
        self,
        dataset: DatasetLike,
        batch_size: int,
        configs: Sequence[Mapping[str, Any]] | None = None,
        *,
        num_batches: int = 10,
    ) -> dict[str, dict[str, Any]]:
        """Return the settings and the figures of each configuration, as ``config_1``, ...

        The workers of a configuration end before the next one starts.

        Args:
            dataset: A map-style dataset.
            batch_size: Number of samples in a batch, unless a configuration has its own.
            configs: Keyword arguments of `ChunkedDataLoader`. None measures four configurations,
                from no workers to many.
            num_batches: Number of batches to measure of each.
        """
        check_dataset(dataset)
        batch_size = whole_number(
            "batch_size", batch_size, minimum=1, unit="sample", error=ConfigError
        )
        if configs is None:
            configs = default_configs(this_machine().cores)
        listed = isinstance(configs, Sequence) and not isinstance(configs, str | bytes)
        if not listed or not configs or not all(isinstance(each, Mapping) for each in configs):
            raise ConfigError(f"configs must be a list of one or more dicts, got {configs!r}")
        results: dict[str, dict[str, Any]] = {}
        for number, config in enumerate(configs, 1):
            print(f"Testing configuration {number}/{len(configs)}: {dict(config)}")
            with ChunkedDataLoader(dataset, **{"batch_size": batch_size, **config}) as loader:
                figures = self.time_batch_loading(loader, num_batches)
            results[f"config_{number}"] = {**config, **figures}
        return results

    def ceiling(
        self, dataloader: Iterable[Any], step: Callable[[Any], Any], num_batches: int = 10
    ) -> dict[str, float]:
        """Return the seconds per batch with this loader, and with batches kept in memory.

        ``loading_share`` is the share of the time that a loader without any cost would save. As in
        `time_batch_loading`, a loader that reads ahead is run until its ready batches are used up.

        Args:
            dataloader: Any iterable of batches that can be iterated twice.
            step: Called with each batch, as in training.
            num_batches: Number of batches to measure, 1 or more.

        Raises:
            BatchError: There is no batch to measure.
        """
        num_batches = _check_batches(dataloader, num_batches)
        if not callable(step):
            raise BatchError(f"step must be callable, got {step!r} ({type(step).__name__})")
        with _unchanged(dataloader), _iterator(dataloader) as batches:
            cached = list(islice(batches, 1 + num_batches))
        if not cached:
            raise BatchError(NO_BATCH)
        step(cached[0])  # the first step may compile or allocate; it is not counted
        begin = perf_counter()
        for batch in cached:
            step(batch)
        replayed = _seconds_since(begin) / len(cached)
        taken, _, tail = _measure(dataloader, 1 + num_batches, step)
        if len(taken) > 1 and _is_past_read_ahead(taken, read_ahead(dataloader)):
            loaded = (sum(each.seconds for each in taken[1:]) + tail) / (len(taken) - 1)
        else:  # the caller waited for each batch; the last one was not stepped on
            loaded = (sum(each.seconds for each in taken) + tail + replayed) / len(taken)
        return {
            "loaded_seconds_per_batch": loaded,
            "cached_seconds_per_batch": replayed,
            "loading_share": max(0.0, 1 - replayed / loaded),
        }


def default_configs(cores: int) -> list[dict[str, Any]]:
    """Return four configurations from no workers to many, with at most one worker per core.

    Args:
        cores: Number of cores that may be used.

    >>> [config["num_workers"] for config in default_configs(8)]
    [0, 4, 8, 8]
    """
    cores = whole_number("cores", cores, minimum=1, error=ConfigError)
    return [each | {"num_workers": min(each["num_workers"], cores)} for each in DEFAULT_CONFIGS]


def read_ahead(dataloader: Any) -> int | None:
    """Return how many batches a loader requests before the first one arrives; None if unknown.

    It is 1 if each batch is read when it is requested.
    """
    if isinstance(dataloader, StreamLoader):
        return None
    if getattr(dataloader, "executor", None) == "threads":
        return 2 * int(dataloader.threads or max(2, this_machine().cores))
    if isinstance(dataloader, DataLoader):
        return max(1, dataloader.num_workers * (dataloader.prefetch_factor or 2))
    return 1 if isinstance(dataloader, Sequence) else None


def _check_batches(dataloader: Any, num_batches: Any) -> int:
    if isinstance(dataloader, str | bytes | PathLike) or not hasattr(dataloader, "__iter__"):
        raise BatchError(
            f"dataloader must be an iterable of batches, got {dataloader!r}: measure "
            "StreamLoader(path, batch_size), or iter(loader.get_next_chunk, (None, None))"
        )
    return whole_number("num_batches", num_batches, minimum=1, unit="batch", error=BatchError)


def _measure(
    dataloader: Any, num_batches: int, step: Callable[[Any], Any] | None = None
) -> tuple[list[Delivery], dict[str, float], float]:
    """Return the deliveries, processor time and memory, and the seconds until the device is idle.

    Batches are taken until there are ``num_batches`` and the read-ahead is used up.
    """
    ahead = read_ahead(dataloader)
    taken: list[Delivery] = []
    cpu, after = tree_cpu_seconds(), 0.0
    with _unchanged(dataloader), closing(_deliveries(dataloader, taken, step)) as arriving:
        for delivery in arriving:
            if len(taken) == 1:
                started = tree_cpu_seconds()  # workers have started
            else:
                after += delivery.seconds
            enough = len(taken) >= num_batches + (ahead or 1) - 1
            if enough and _is_past_read_ahead(taken, ahead, after):
                break
        tail = _seconds_since(perf_counter())
        memory = tree_bytes()  # before the workers end
        spent = tree_cpu_seconds() - (started if len(taken) > 1 else cpu)
    if not taken:
        raise BatchError(NO_BATCH)
    samples = max(1, sum(each.samples for each in taken[1:] or taken))
    return taken, {"cpu_seconds_per_sample": spent / samples, "memory_bytes": memory}, tail


def _deliveries(
    dataloader: Any, taken: list[Delivery], step: Callable[[Any], Any] | None
) -> Generator[Delivery, None, None]:
    """Yield each batch's delivery, after appending it to ``taken``.

    The seconds of the first one start when the loader is opened. A loader that continues to read
    ahead across the end of an epoch, and has a position to return to, is iterated again until its
    read-ahead is used up.

    Args:
        dataloader: The loader to iterate.
        taken: Receives the deliveries.
        step: Called with each batch; its time counts with the next batch.
    """
    begin, ahead = perf_counter(), read_ahead(dataloader)
    while True:
        before = len(taken)
        with _iterator(dataloader) as batches:
            for batch in batches:
                seconds = perf_counter() - begin
                sizes = samples_of(batch), bytes_of(batch)
                taken.append(Delivery(seconds, *sizes))
                yield taken[-1]
                begin = perf_counter()
                if step is not None:
                    step(batch)
                del batch  # its memory may be reused for the next one
        past = _is_past_read_ahead(taken, ahead)
        if past or len(taken) == before or not _reads_across_epochs(dataloader):
            return


def _is_past_read_ahead(
    taken: Sequence[Delivery], ahead: int | None, after: float | None = None
) -> bool:
    """Return whether more batches arrived than were ready or in flight when the first one did.

    If that number is unknown, the readers must have had at least as long again (``after``, the
    seconds of all batches but the first) as the first one took, and long enough for many bursts.
    """
    if ahead == 1:
        return bool(taken)
    if ahead is not None:
        return len(taken) > 2 * ahead
    if after is None:
        after = sum(each.seconds for each in taken[1:])
    return bool(taken) and after >= max(taken[0].seconds, SETTLED_SECONDS)


def _reads_across_epochs(dataloader: Any) -> bool:
    """Return whether a loader keeps reading ahead between two iterations."""
    if not has_position(dataloader):
        return False
    if isinstance(dataloader, DataLoader):
        return dataloader.num_workers == 0 or dataloader.persistent_workers
    return True


@contextmanager
def _unchanged(dataloader: Any) -> Iterator[None]:
    """A block in which a loader may be iterated; after it, the loader is as before.

    An iterator that can be read only once is consumed all the same.
    """
    generators = [getattr(dataloader, "generator", None)]
    for sampler in (getattr(dataloader, name, None) for name in ("sampler", "batch_sampler")):
        generators += [getattr(sampler, "generator", None)]
        generators += [getattr(getattr(sampler, "sampler", None), "generator", None)]
    with ExitStack() as blocks:
        blocks.enter_context(preserve_random_state(*generators))
        if isinstance(dataloader, Loader):
            blocks.callback(setattr, dataloader, "metrics", dataloader.metrics)
            dataloader.metrics = Recorder()
        if has_position(dataloader):
            with dataloader.apart():
                pass  # drops what the loader read ahead before the measurement
            blocks.enter_context(dataloader.apart())
        yield


@contextmanager
def _iterator(dataloader: Any) -> Iterator[Iterator[Any]]:
    """An iterator that ends with the block, like its workers unless they are persistent."""
    batches = iter(dataloader)
    try:
        yield batches
    finally:
        if hasattr(batches, "close"):
            batches.close()
        if isinstance(dataloader, DataLoader) and not dataloader.persistent_workers:
            end_workers(batches)


def _seconds_since(begin: float) -> float:
    """Return the time from ``begin`` until the device has finished its work."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return perf_counter() - begin
