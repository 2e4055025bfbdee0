"""What a user's dataset costs and holds: a sample's time and bytes, and attributes of objects."""

from __future__ import annotations

import io
import resource
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.datasets.gather import gather_of
from penstock.loaders.pass_through import preserve_random_state
from penstock.loaders.worker_errors import twin, unpicklable_part
from penstock.metrics import bytes_of

CHEAP_SECONDS = 50e-6  # sending a sample between processes costs about as much
COPYING_SECONDS = 1e-9  # per byte of a gather; a worker would copy the bytes once more
COSTLY_SECONDS = 1e-3  # above this, a sample is worth a worker process
ENOUGH_SECONDS = 0.1  # time limit of the measurement
WAITING_SHARE = 0.5  # of the time not spent computing: the storage is slow to answer
MAX_NESTED = 4  # objects in objects, as far as attributes are looked at
ITEMS = 8  # of a list that are looked at
GATHERS = 3  # the fastest one counts: a short gather is easily disturbed


@dataclass(frozen=True, slots=True)
class SampleCost:
    """The time and memory that one sample takes.

    Args:
        seconds: Time to read a sample, computing and waiting.
        waiting_seconds: The part of it spent waiting for storage.
        nbytes: Size of its arrays.
        gathered: The dataset reads all samples of a batch in one call.
    """

    seconds: float
    waiting_seconds: float
    nbytes: int
    gathered: bool

    @property
    def is_cheap(self) -> bool:
        """Whether reading it here costs less than sending it from a worker."""
        copying = self.nbytes * COPYING_SECONDS if self.gathered else 0.0
        return self.seconds < CHEAP_SECONDS + copying

    @property
    def is_costly(self) -> bool:
        """Whether it is worth a worker process."""
        return not self.is_cheap and self.seconds > COSTLY_SECONDS

    @property
    def waits(self) -> bool:
        """Whether most of the time is waiting, so that more readers than cores help."""
        return self.is_costly and self.waiting_seconds > WAITING_SHARE * self.seconds

    def __str__(self) -> str:
        in_one_call = self.gathered and self.is_cheap
        return "gathered in one call" if in_one_call else f"read in {self.seconds * 1e6:,.0f} us"


def measure_cost(dataset: Any) -> SampleCost:
    """Return the cost of a sample, without opening any file of the dataset itself.

    Args:
        dataset: A map-style dataset. A copy is measured if it can be copied.
    """
    as_it_is = gather_of(dataset) is not None or unpicklable_part(dataset, "dataset") is not None
    return cost_of(dataset if as_it_is else twin(dataset))


def cost_of(dataset: Any, *, samples: int = 8) -> SampleCost:
    """Return the cost of a sample, from reading a few; random generators stay as they were.

    Args:
        dataset: A map-style dataset, whose files may be opened by this.
        samples: Number of samples to read.
    """
    gathered, count = gather_of(dataset) is not None, min(samples, len(dataset))
    if not count:
        return SampleCost(0.0, 0.0, 0, gathered)
    read_batch = _batch_reader(dataset)
    parts = GATHERS if read_batch else 1
    spread = np.linspace(0, len(dataset) - 1, parts * count).astype(int).tolist()
    with preserve_random_state():
        nbytes = bytes_of(read_batch([0]) if read_batch else dataset[0])  # opens files
        if read_batch is None:
            seconds, waiting = _seconds_of_samples(dataset, spread)
        else:
            # different samples each time, so that none is in the page cache already
            measured = [_Stopwatch().after(read_batch, spread[i::parts]) for i in range(parts)]
            seconds, waiting = (each / count for each in min(measured))
    return SampleCost(seconds, waiting, nbytes, gathered)


def _batch_reader(dataset: Any) -> Callable[[list[int]], Any] | None:
    """Return the function that reads several samples in one call; None if there is none."""
    gather = gather_of(dataset)
    if gather is None:
        batched: Callable[[list[int]], Any] | None = getattr(dataset, "__getitems__", None)
        return batched
    return lambda indices: gather(np.asarray(indices, np.int64))


def _seconds_of_samples(dataset: Any, indices: list[int]) -> tuple[float, float]:
    stopwatch, read = _Stopwatch(), 0
    while read < len(indices) and (not read or stopwatch.elapsed < ENOUGH_SECONDS):
        dataset[indices[read]]
        read += 1
    seconds, waiting = stopwatch.read(reads=read)
    return seconds / read, waiting / read


class _Stopwatch:
    """Measures the time this process spends computing and waiting.

    Time in which other processes had the core is not counted: on a busy machine it would make
    cheap samples look costly.
    """

    def __init__(self) -> None:
        self._switches = _voluntary_switches()
        self._cpu, self._begin = process_time(), perf_counter()

    @property
    def elapsed(self) -> float:
        return perf_counter() - self._begin

    def read(self, reads: int) -> tuple[float, float]:
        """Return the seconds so far, and how many of them were spent waiting."""
        wall, cpu = self.elapsed, process_time() - self._cpu
        waits = _voluntary_switches() - self._switches >= reads
        waiting = max(0.0, wall - cpu) if waits else 0.0
        return min(wall, cpu) + waiting, waiting

    def after(self, work: Callable[[list[int]], Any], indices: list[int]) -> tuple[float, float]:
        """Return what `read` gives after a call that reads these samples."""
        work(indices)
        return self.read(reads=len(indices))


def _voluntary_switches() -> int:
    """Return how often this process gave up its core in order to wait."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


# -- attributes


def attributes(value: Any, name: str = "dataset", depth: int = MAX_NESTED) -> Iterator[Any]:
    """Yield name and value of the attributes of an object, and of objects of the user in it."""
    own = type(value).__module__.partition(".")[0] not in ("penstock", "numpy", "zarr", "pyarrow")
    inside = own or isinstance(value, Dataset)
    if isinstance(value, list | tuple):
        inner = {f"{name}[{i}]": each for i, each in enumerate(value[:ITEMS])}
    elif isinstance(value, dict):
        inner = {f"{name}[{key!r}]": value[key] for key in islice(value, ITEMS)}
    elif inside and not isinstance(value, type | torch.Tensor | torch.nn.Module | io.IOBase):
        inner = {f"{name}.{key}": each for key, each in getattr(value, "__dict__", {}).items()}
    else:
        return
    for key, each in inner.items():
        yield key, each
        if depth and not isinstance(each, threading.Thread | Executor):
            yield from attributes(each, key, depth - 1)


def hazards_of(dataset: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and a description of each attribute that is not safe to fork."""
    for name, value in attributes(dataset):
        module = type(value).__module__.partition(".")[0]
        if isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO):
            yield name, "is an open file, whose position all workers would share"
        elif module in ("h5py", "sqlite3", "socket") and not isinstance(value, type):
            yield name, f"is an open {type(value).__name__} of {module}, not safe to share"
        elif isinstance(value, threading.Thread | Executor):
            yield name, "has threads, which do not run in a forked worker"
        elif isinstance(value, torch.Tensor) and value.device.type != "cpu":
            yield name, f"is on {value.device}, which cannot be used in a forked worker"


def long_lists(dataset: Any) -> Iterator[tuple[str, int]]:
    """Yield name and length of each collection of Python objects."""
    for name, value in attributes(dataset):
        if isinstance(value, list | tuple | dict | set):
            yield name, len(value)


def packed(dataset: Any) -> Iterator[str]:
    """Yield the names of stored arrays whose attributes say how to decode their values."""
    for name, value in attributes(dataset):
        marks = getattr(value, "attrs", None)
        if hasattr(value, "dtype") and isinstance(marks, Mapping) and "scale_factor" in marks:
            yield name


def unbounded_caches(dataset: Any) -> Iterator[tuple[str, int]]:
    """Yield name and size of caches of methods (`functools.lru_cache`) that have no limit."""
    for kind in type(dataset).__mro__:
        for name, method in vars(kind).items():
            info = getattr(method, "cache_info", None)
            if info is not None and info().maxsize is None:
                yield f"the cache of dataset.{name}", info().currsize
