"""How fast a loader is: the time of ``next()``, and what is read in a second."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
from penstock.loaders.machine import this_machine
from penstock.loaders.options import check_dataset
from penstock.loaders.pass_through import preserve_random_state
from penstock.loaders.processes import end_workers
from penstock.loaders.stream import StreamLoader
from penstock.metrics import Delivery, steady, summarize, tree_bytes, tree_cpu_seconds
from penstock.tuning.contents import bytes_of, samples_of
from penstock.tuning.devices import accelerator_memory, accelerator_use

log = logging.getLogger("penstock")

SETTLED_SECONDS = 0.1  # of measuring a loader that reads ahead by an unknown number of batches

SEEDS_CONFIGS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0, "pin_memory": False},
    {"num_workers": 4, "pin_memory": True, "persistent_workers": True},
    {"num_workers": 8, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 4},
    {"num_workers": 12, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 6},
)


class DataLoaderPerformanceMonitor:
    """Measures loaders, and keeps what it measured in ``metrics``.

    Measuring leaves a loader where it was: no batch of the run is used up, its ``waited_seconds``
    and the ambient generators are as before.

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
        """Seconds that ``next()`` takes, and the throughput of a loop that does nothing else.

        ``first_batch_time`` is what the first batch took, with the start of workers and the
        opening of files. All other times and rates are of the batches after it. A loader that reads
        ahead is measured until the batches that were ready when the first one arrived are used
        up, and ``samples_per_second`` counts from one batch that was waited for to another, so that
        it is what is *read* in a second. That may take more than ``num_batches`` batches: for a
        `StreamLoader`, at least as long again as its first batch took. ``num_batches``,
        ``num_samples`` and ``total_time`` are those of the whole measurement.

        A loader that ends before that is measured as a stopwatch around its loop would: the figures
        include the first batch, with the start of its workers.

        Args:
            dataloader: Any iterable of batches. An iterator, which can be read only once, is used
                up by it.
            num_batches: Batches to measure, where the loader has as many; 1 or more.

        Raises:
            BatchError: There is no batch to measure.
        """
        num_batches = check_batches(dataloader, num_batches)
        with apart(dataloader):
            taken, used = self._take(dataloader, num_batches)
        ahead = read_ahead(dataloader)
        complete = is_past_read_ahead(taken, ahead)
        if not complete:
            log.info("the loader ended with what it had read ahead: its start is counted")
        elif len(taken) < num_batches:
            log.info("the loader has %d batches to measure, not %d", len(taken), num_batches)
        counted = taken[1:] if ahead == 1 else steady(taken, ahead or 1)
        deliveries = [taken[0], *(counted if complete else taken)]
        self.metrics["batch_loading_times"] += [each.seconds for each in taken]
        self.metrics["memory_usage"].append(used["memory_bytes"])
        self.metrics["gpu_utilization"] += accelerator_use()
        return {
            **summarize(deliveries),
            "total_time": sum(each.seconds for each in taken),
            **used,
            "num_batches": len(taken),
            "num_samples": sum(each.samples for each in taken),
            **accelerator_memory(),
        }

    def _take(self, dataloader: Any, num_batches: int) -> tuple[list[Delivery], dict[str, float]]:
        """Deliveries until they tell the throughput, and what they used of the machine."""
        taken: list[Delivery] = []
        cpu = started = tree_cpu_seconds()
        with closing(deliveries_of(dataloader)) as arriving:
            for each in arriving:
                taken.append(each)
                if len(taken) == 1:
                    started = tree_cpu_seconds()  # workers have started
                if is_enough(taken, num_batches, read_ahead(dataloader)):
                    break
            memory = tree_bytes()  # while the workers are there
            spent = tree_cpu_seconds() - (started if len(taken) > 1 else cpu)
        if not taken:
            raise BatchError(NOTHING)
        samples = max(1, sum(each.samples for each in taken[1:] or taken))
        return taken, {"cpu_seconds_per_sample": spent / samples, "memory_bytes": memory}

    def benchmark_configurations(
        self,
        dataset: Any,
        batch_size: int,
        configs: Sequence[Mapping[str, Any]] | None = None,
        *,
        num_batches: int = 10,
    ) -> dict[str, dict[str, Any]]:
        """The figures of each configuration, beside it.

        Workers of a configuration end before the next one begins.

        Args:
            dataset: A map-style dataset.
            batch_size: Samples of a batch, where a configuration has none of its own.
            configs: Arguments of `ChunkedDataLoader`; None for four from no to many workers.
            num_batches: Batches to measure of each.
        """
        check_dataset(dataset)
        batch_size = whole_number(
            "batch_size", batch_size, minimum=1, unit="sample", error=ConfigError
        )
        configs = check_configs(configs)
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
        """Is loading the bottleneck at all? The same steps with batches that are in memory.

        ``loading_share`` is the part of the time that a loader without any cost would save. As in
        `time_batch_loading`, a loader that reads ahead is run until what it had ready is used up.

        Args:
            dataloader: Any iterable of batches that can be iterated twice.
            step: Called with each batch, as training does.
            num_batches: Batches to measure, where the loader has as many; 1 or more.
        """
        num_batches = check_batches(dataloader, num_batches)
        if not callable(step):
            raise BatchError(f"step must be callable, got {step!r} ({type(step).__name__})")
        ahead = read_ahead(dataloader)
        with apart(dataloader), own_iterator(dataloader) as batches:
            cached = list(islice(batches, 1 + num_batches))
        if not cached:
            raise BatchError(NOTHING)
        step(cached[0])  # what a first step prepares is not counted
        replayed = _seconds_of(lambda: [step(batch) for batch in cached]) / len(cached)
        taken: list[Delivery] = []
        with apart(dataloader), closing(deliveries_of(dataloader, step)) as arriving:
            for each in arriving:
                taken.append(each)
                if is_enough(taken, 1 + num_batches, ahead):
                    break
            tail = _seconds_of(lambda: None)  # until the device has done what it was given
        if len(taken) > 1 and is_past_read_ahead(taken, ahead):
            loaded = (sum(each.seconds for each in taken[1:]) + tail) / (len(taken) - 1)
        else:  # each batch was waited for, and all but the last were stepped on
            loaded = (sum(each.seconds for each in taken) + tail + replayed) / len(taken)
        return {
            "loaded_seconds_per_batch": loaded,
            "cached_seconds_per_batch": replayed,
            "loading_share": max(0.0, 1 - replayed / loaded),
        }


NOTHING = (
    "the loader gave no batch, so there is nothing to measure: it is empty, or drop_last drops "
    "the only one"
)


def default_configs(cores: int) -> list[dict[str, Any]]:
    """Four configurations from none to many workers, as far as there are cores.

    Args:
        cores: Cores that may be used.

    >>> [config["num_workers"] for config in default_configs(8)]
    [0, 4, 8, 8]
    """
    cores = whole_number("cores", cores, minimum=1, error=ConfigError)
    return [
        {**config, "num_workers": min(config["num_workers"], cores)} for config in SEEDS_CONFIGS
    ]


def check_batches(dataloader: Any, num_batches: Any) -> int:
    """The number of batches to measure; what has no batches is refused."""
    if isinstance(dataloader, str | bytes | PathLike) or not hasattr(dataloader, "__iter__"):
        raise BatchError(
            f"dataloader must be an iterable of batches, got {dataloader!r}: measure "
            "StreamLoader(path, batch_size) for a path, and iter(loader.get_next_chunk, "
            "(None, None)) for the chunks of an epoch that was started"
        )
    return whole_number("num_batches", num_batches, minimum=1, unit="batch", error=BatchError)


def check_configs(configs: Any) -> list[Mapping[str, Any]]:
    """The configurations to measure, one or more mappings."""
    if configs is None:
        return list(default_configs(this_machine().cores))
    listed = isinstance(configs, Sequence) and not isinstance(configs, str | bytes)
    if not listed or not configs or not all(isinstance(each, Mapping) for each in configs):
        raise ConfigError(
            f"configs must be a list of one or more dicts, such as [{{'num_workers': 2}}], got "
            f"{configs!r}"
        )
    return list(configs)


def read_ahead(dataloader: Any) -> int | None:
    """Batches that a loader requests before the first one arrives; None if that is unknown.

    1 where each batch is read when it is asked for.
    """
    if isinstance(dataloader, StreamLoader):
        return None
    if getattr(dataloader, "executor", None) == "threads":
        return 2 * int(dataloader.threads or max(2, this_machine().cores))
    if isinstance(dataloader, DataLoader):
        return max(1, dataloader.num_workers * (dataloader.prefetch_factor or 2))
    return 1 if isinstance(dataloader, Sequence) else None


def is_past_read_ahead(taken: Sequence[Delivery], ahead: int | None) -> bool:
    """Have more batches arrived than were ready, or on their way, when the first one did?

    Where their number is unknown, readers must have had as long again as the first batch took,
    and long enough for many bursts.
    """
    if ahead == 1:
        return bool(taken)
    if ahead is not None:
        return len(taken) > 2 * ahead
    after = sum(each.seconds for each in taken[1:])
    return bool(taken) and after >= max(taken[0].seconds, SETTLED_SECONDS)


def is_enough(taken: Sequence[Delivery], num_batches: int, ahead: int | None) -> bool:
    """Do these batches tell the throughput, and are there as many as were asked for?"""
    return len(taken) >= num_batches + (ahead or 1) - 1 and is_past_read_ahead(taken, ahead)


def deliveries_of(
    dataloader: Any, step: Callable[[Any], Any] | None = None
) -> Generator[Delivery, None, None]:
    """Batches as they arrive, the first one's seconds from the moment of opening the loader.

    A loader that keeps on reading ahead over the end of an epoch, and has a position to return to,
    is iterated again until `is_past_read_ahead`.

    Args:
        dataloader: What is iterated.
        step: Called with each batch; its time counts with the next one.
    """
    taken: list[Delivery] = []
    begin = perf_counter()
    while True:
        before = len(taken)
        with own_iterator(dataloader) as batches:
            for batch in batches:
                seconds = perf_counter() - begin
                taken.append(Delivery(seconds, samples_of(batch), bytes_of(batch)))
                yield taken[-1]
                begin = perf_counter()
                if step is not None:
                    step(batch)
                del batch  # its memory may be used for the next one
        past = is_past_read_ahead(taken, read_ahead(dataloader))
        if past or len(taken) == before or not continues(dataloader):
            return


def continues(dataloader: Any) -> bool:
    """Does a loader go on reading ahead between two iterations, and has a position to return to?"""
    own = isinstance(dataloader, Loader) and has_cursor(dataloader)
    return own and bool(dataloader._keeps_stream)


@contextmanager
def apart(dataloader: Any) -> Iterator[None]:
    """A block in which a loader may be iterated; after it, the loader is as it was before.

    What the loader had read ahead is dropped first: it was read before the clock starts. An
    iterator that can be read only once is used up all the same.
    """
    drawing = [getattr(dataloader, "generator", None)]
    for sampler in (getattr(dataloader, name, None) for name in ("sampler", "batch_sampler")):
        drawing += [getattr(sampler, "generator", None)]
        drawing += [getattr(getattr(sampler, "sampler", None), "generator", None)]
    with ExitStack() as blocks:
        blocks.enter_context(preserve_random_state(*drawing))
        if isinstance(dataloader, Loader):
            blocks.callback(setattr, dataloader, "waited_seconds", dataloader.waited_seconds)
            if has_cursor(dataloader):
                dataloader._drop_stream()
                blocks.enter_context(dataloader.apart())
        yield


def has_cursor(loader: Loader) -> bool:
    """Has it a place of its own, or is it torch's loader under our name?"""
    return getattr(loader, "pass_through", None) is None


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


def _seconds_of(work: Callable[[], Any]) -> float:
    begin = perf_counter()
    work()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return perf_counter() - begin
