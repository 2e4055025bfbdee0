"""How fast a loader really is: the time of ``next()``, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock.errors import BatchError
from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.contents import bytes_of, samples_of
from penstock.loaders.devices import accelerator_memory, accelerator_use
from penstock.loaders.machine import this_machine
from penstock.loaders.peeking import undisturbed
from penstock.loaders.processes import end_workers
from penstock.metrics import Delivery, summarize, tree_bytes, tree_cpu_seconds

log = logging.getLogger("penstock")

SEEDS_CONFIGS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0, "pin_memory": False},
    {"num_workers": 4, "pin_memory": True, "persistent_workers": True},
    {"num_workers": 8, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 4},
    {"num_workers": 12, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 6},
)


class DataLoaderPerformanceMonitor:
    """Measures loaders, and keeps what it measured in ``metrics``.

    Measuring leaves a loader where it was: no batch of the run is used up, and ambient generators
    are as before.

    >>> monitor = DataLoaderPerformanceMonitor()
    >>> figures = monitor.time_batch_loading([torch.zeros(4)] * 3, num_batches=2)
    >>> figures["num_batches"], figures["num_samples"]
    (2, 8)
    """

    def __init__(self) -> None:
        self.metrics: dict[str, list[float]] = {
            "batch_loading_times": [],
            "gpu_utilization": [],
            "memory_usage": [],
        }

    def time_batch_loading(self, dataloader: Any, num_batches: int = 10) -> dict[str, float]:
        """Seconds ``next()`` takes, the first batch apart, and what that makes a second.

        Batches that workers had ready when the first one came are taken, but not counted: coming
        at once, they would look like speed. A loader with fewer batches is measured as far as it
        goes (``num_batches`` tells); one with none is an error. With one batch only, the figures
        are those of the first.
        """
        if num_batches < 1:
            raise BatchError(f"num_batches must be 1 or more, got {num_batches!r}")
        with apart(dataloader):
            begin, cpu = perf_counter(), tree_cpu_seconds()
            with own_iterator(dataloader) as batches:
                ahead = in_flight(dataloader)
                taken = list(timed(batches, ahead + num_batches - 1, begin=begin))
                cpu = tree_cpu_seconds() - cpu
                memory = tree_bytes()  # while the workers are there
        if not taken:
            raise BatchError(NOTHING)
        deliveries = [taken[0], *(taken[ahead:] or taken[1:])]
        if len(deliveries) < num_batches:
            log.info("the loader has %d batches to measure, not %d", len(deliveries), num_batches)
        self.metrics["batch_loading_times"] += [each.seconds for each in deliveries]
        self.metrics["memory_usage"].append(memory)
        self.metrics["gpu_utilization"] += accelerator_use()
        return {
            **summarize(deliveries),
            "total_time": sum(each.seconds for each in deliveries),
            "cpu_seconds_per_sample": cpu / max(1, sum(each.samples for each in taken)),
            "memory_bytes": memory,
            "num_batches": len(deliveries),
            "num_samples": sum(each.samples for each in deliveries),
            **accelerator_memory(),
        }

    def benchmark_configurations(
        self,
        dataset: Any,
        batch_size: int,
        configs: Sequence[Mapping[str, Any]] | None = None,
        *,
        num_batches: int = 10,
    ) -> dict[str, dict[str, Any]]:
        """The figures of each configuration, beside it; workers end before the next one begins."""
        configs = default_configs(this_machine().cores) if configs is None else configs
        results: dict[str, dict[str, Any]] = {}
        for number, config in enumerate(configs, 1):
            print(f"Testing configuration {number}/{len(configs)}: {dict(config)}")
            with ChunkedDataLoader(dataset, **{"batch_size": batch_size, **config}) as loader:
                figures = self.time_batch_loading(loader, num_batches)
            results[f"config_{number}"] = {**config, **figures}
        return results

    def ceiling(
        self, dataloader: Any, step: Callable[[Any], Any], num_batches: int = 10
    ) -> dict[str, float]:
        """Is loading the bottleneck at all? The same steps with batches that are there already.

        ``loading_share`` is the part of the time that a loader without any cost would save.
        """
        with apart(dataloader), own_iterator(dataloader) as batches:
            cached = list(islice(batches, 1 + num_batches))
        if not cached:
            raise BatchError(NOTHING)
        warm = len(cached) > 1  # workers start and caches warm with the first, which is not counted
        with apart(dataloader), own_iterator(dataloader) as batches:
            for batch in islice(batches, int(warm)):
                step(batch)
            loaded = _run(islice(batches, num_batches), step)
        count = len(cached) - warm
        replayed = _run(iter(cached[-count:]), step)
        return {
            "loaded_seconds_per_batch": loaded / count,
            "cached_seconds_per_batch": replayed / count,
            "loading_share": max(0.0, 1 - replayed / loaded),
        }


NOTHING = (
    "the loader gave no batch, so there is nothing to measure: it is empty, or drop_last drops "
    "the only one"
)


def default_configs(cores: int) -> list[dict[str, Any]]:
    """Four configurations from none to many workers, as far as there are cores.

    >>> [config["num_workers"] for config in default_configs(8)]
    [0, 4, 8, 8]
    """
    return [
        {**config, "num_workers": min(config["num_workers"], cores)} for config in SEEDS_CONFIGS
    ]


def in_flight(dataloader: Any) -> int:
    """Batches that a loader asks its readers for before the first one comes; 1 without readers."""
    if getattr(dataloader, "executor", None) == "threads":
        return 2 * (dataloader.threads or max(2, this_machine().cores))
    workers = getattr(dataloader, "num_workers", 0)
    return max(1, workers * (getattr(dataloader, "prefetch_factor", None) or 2))


@contextmanager
def apart(dataloader: Any) -> Iterator[None]:
    """A block in which a loader may be iterated; after it, it and what it draws from are as before.

    An iterator that can be read only once is used up all the same.
    """
    drawing = [getattr(dataloader, "generator", None)]
    for sampler in (getattr(dataloader, name, None) for name in ("sampler", "batch_sampler")):
        drawing += [getattr(sampler, "generator", None)]
        drawing += [getattr(getattr(sampler, "sampler", None), "generator", None)]
    with ExitStack() as blocks:
        blocks.enter_context(undisturbed(*drawing))
        if isinstance(dataloader, Loader) and has_cursor(dataloader):
            blocks.enter_context(dataloader.apart())
        yield


def has_cursor(loader: Loader) -> bool:
    """Has it a place of its own, or is it torch's loader under our name?"""
    return getattr(loader, "_passes_through", None) is None


@contextmanager
def own_iterator(dataloader: Any) -> Iterator[Iterator[Any]]:
    """An iterator that ends with the block, and the workers it started, unless they are kept."""
    batches = iter(dataloader)
    try:
        yield batches
    finally:
        if hasattr(batches, "close"):
            batches.close()
        if isinstance(dataloader, DataLoader) and not dataloader.persistent_workers:
            end_workers(batches)


def timed(batches: Iterator[Any], count: int, *, begin: float) -> Iterator[Delivery]:
    """How long each of so many batches took to come; the first one since ``begin``."""
    for batch in islice(batches, count):
        seconds = perf_counter() - begin
        yield Delivery(seconds, samples_of(batch), bytes_of(batch))
        begin = perf_counter()


def _run(batches: Iterator[Any], step: Callable[[Any], Any]) -> float:
    begin = perf_counter()
    for batch in batches:
        step(batch)
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return perf_counter() - begin
