"""How fast a loader really is: the time of ``next()``, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from time import perf_counter
from typing import Any

import torch

from penstock.errors import BatchError
from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.machine import this_machine
from penstock.metrics import summarize, tree_bytes, tree_cpu_seconds

SEEDS_CONFIGS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0, "pin_memory": False},
    {"num_workers": 4, "pin_memory": True, "persistent_workers": True},
    {"num_workers": 8, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 4},
    {"num_workers": 12, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 6},
)


class DataLoaderPerformanceMonitor:
    """Measures loaders, and keeps what it measured.

    Measuring leaves a loader where it was: no batch of the run is used up.

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

        A loader with fewer batches is measured as far as it goes (``num_batches`` tells); one
        with none is an error. With one batch only, the figures are those of the first.
        """
        with apart(dataloader), closing_iterator(dataloader) as batches:
            cpu, begin = tree_cpu_seconds(), perf_counter()
            times, samples, nbytes = _time(islice(batches, num_batches))
            if not times:
                raise BatchError("the loader gave no batch: there is nothing to measure")
            total, cpu = perf_counter() - begin, tree_cpu_seconds() - cpu
            memory = tree_bytes()
        steady = times[1:] or times
        self.metrics["batch_loading_times"] += times
        self.metrics["memory_usage"].append(memory)
        self.metrics["gpu_utilization"] += _utilization()
        share = len(steady) / len(times) * sum(samples)
        return {
            **summarize(steady),
            "total_time": total,
            "first_batch_time": times[0],
            "samples_per_second": share / sum(steady),
            "bytes_per_second": sum(nbytes) / len(times) * len(steady) / sum(steady),
            "cpu_seconds_per_sample": cpu / max(1, sum(samples)),
            "memory_bytes": memory,
            "num_batches": len(times),
            "num_samples": sum(samples),
            **_accelerator_memory(),
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
            with ChunkedDataLoader(dataset, batch_size, **config) as loader:
                figures = self.time_batch_loading(loader, num_batches)
            results[f"config_{number}"] = {**config, **figures}
        return results

    def ceiling(
        self, dataloader: Any, step: Callable[[Any], Any], num_batches: int = 10
    ) -> dict[str, float]:
        """Is loading the bottleneck at all? The same steps with batches that are there already.

        ``loading_share`` is the part of the time that a loader without any cost would save.
        """
        with apart(dataloader), closing_iterator(dataloader) as batches:
            cached = list(islice(batches, 1 + num_batches))
        if not cached:
            raise BatchError("the loader gave no batch: there is nothing to measure")
        with apart(dataloader), closing_iterator(dataloader) as batches:
            step(next(batches))  # workers start, caches warm
            loaded = _run(islice(batches, num_batches), step)
        replayed = _run(iter(cached[1:] or cached), step)
        count = max(1, len(cached) - 1)
        return {
            "loaded_seconds_per_batch": loaded / count,
            "cached_seconds_per_batch": replayed / count,
            "loading_share": max(0.0, 1 - replayed / loaded) if loaded else 0.0,
        }


def default_configs(cores: int) -> list[dict[str, Any]]:
    """Four configurations from none to many workers, as far as there are cores.

    >>> [config["num_workers"] for config in default_configs(8)]
    [0, 4, 8, 8]
    """
    return [
        {**config, "num_workers": min(config["num_workers"], cores)} for config in SEEDS_CONFIGS
    ]


def apart(dataloader: Any) -> AbstractContextManager[Any]:
    """A block in which a loader of ours may be iterated without moving; others are as they are."""
    if isinstance(dataloader, Loader) and getattr(dataloader, "_passes_through", None) is None:
        return dataloader.apart()
    return nullcontext()


@contextmanager
def closing_iterator(dataloader: Any) -> Iterator[Iterator[Any]]:
    """An iterator that is let go of at the end, with the workers it may have started."""
    batches = iter(dataloader)
    try:
        yield batches
    finally:
        getattr(batches, "close", lambda: None)()
        del batches


def _time(batches: Iterator[Any]) -> tuple[list[float], list[int], list[int]]:
    times, samples, nbytes = [], [], []
    begin = perf_counter()
    for batch in batches:
        times.append(perf_counter() - begin)
        tensors = list(tensors_of(batch))
        samples.append(len(tensors[0]) if tensors and tensors[0].ndim else 1)
        nbytes.append(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
        begin = perf_counter()
    return times, samples, nbytes


def _run(batches: Iterator[Any], step: Callable[[Any], Any]) -> float:
    begin = perf_counter()
    for batch in batches:
        step(batch)
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return perf_counter() - begin


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """All tensors in a batch, however nested."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_of(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_of(value)


def _utilization() -> list[float]:
    """Share of the accelerator in use, where its driver tells."""
    if not torch.cuda.is_available():
        return []
    try:
        return [torch.cuda.utilization() / 100]
    except (ModuleNotFoundError, RuntimeError):
        return []


def _accelerator_memory() -> dict[str, float]:
    if not torch.accelerator.is_available():
        return {}
    return {
        "accelerator_allocated_bytes": torch.accelerator.memory_allocated(),
        "accelerator_reserved_bytes": torch.accelerator.memory_reserved(),
        "accelerator_peak_bytes": torch.accelerator.max_memory_allocated(),
    }
