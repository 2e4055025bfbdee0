"""What a sample costs: time and bytes, measured on a few."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import numpy as np

from penstock.datasets.gather import Gather, gather_of
from penstock.loaders.pass_through import preserve_random_state
from penstock.loaders.pickling import twin, unpicklable_part
from penstock.tuning.contents import bytes_of

CHEAP_SECONDS = 50e-6  # a sample below this costs less than sending it between processes
COPYING_SECONDS = 1e-9  # a byte: of a gather that takes no longer a worker would only add to it
COSTLY_SECONDS = 1e-3  # one above this is worth a process
ENOUGH_SECONDS = 0.1  # spent on looking
WAITING_SHARE = 0.5  # of the time spent not computing: storage answers late


@dataclass(frozen=True, slots=True)
class SampleCost:
    """What one sample takes: seconds (and how many of them waiting), and bytes."""

    seconds: float
    waiting_seconds: float
    nbytes: int
    gathered: bool

    @property
    def is_cheap(self) -> bool:
        """Is it cheaper read here than sent from a worker?"""
        copying = self.nbytes * COPYING_SECONDS if self.gathered else 0.0
        return self.seconds < CHEAP_SECONDS + copying

    @property
    def is_costly(self) -> bool:
        """Is it worth a process of its own?"""
        return not self.is_cheap and self.seconds > COSTLY_SECONDS

    @property
    def waits(self) -> bool:
        """Is most of it waiting, so that more readers than cores help?"""
        return self.is_costly and self.waiting_seconds > WAITING_SHARE * self.seconds

    def __str__(self) -> str:
        in_one_go = self.gathered and self.is_cheap
        return "gathered in one go" if in_one_go else f"read in {self.seconds * 1e6:,.0f} us"


def measure_cost(dataset: Any) -> SampleCost:
    """What a sample costs, measured on a twin: nothing of the dataset itself is opened."""
    alone = gather_of(dataset) is not None or unpicklable_part(dataset, "dataset") is not None
    return cost_of(dataset if alone else twin(dataset))


def cost_of(dataset: Any, *, samples: int = 8) -> SampleCost:
    """Read a few samples, leaving ambient generators as they were."""
    gather, batched = gather_of(dataset), getattr(dataset, "__getitems__", None)
    count = min(samples, len(dataset))
    if not count:
        return SampleCost(0.0, 0.0, 0, gather is not None)
    spread = [i * (len(dataset) - 1) // max(1, count - 1) for i in range(count)]
    together = _together(gather, batched)
    with preserve_random_state():
        nbytes = bytes_of(dataset[0] if together is None else together([0]))  # files open here
        begin, cpu, waited, read = perf_counter(), process_time(), _waits(), 0
        if together is not None:
            together(spread)
            read = count
        while read < count and (not read or perf_counter() - begin < ENOUGH_SECONDS):
            dataset[spread[read]]
            read += 1
        seconds, cpu = perf_counter() - begin, process_time() - cpu
    waiting = max(0.0, seconds - cpu) if _waits() - waited >= read else 0.0
    return SampleCost(seconds / read, waiting / read, nbytes, gather is not None)


def _together(gather: Gather | None, batched: Callable[[list[int]], Any] | None) -> Any:
    """How several samples are read at once; None where they are not."""
    if gather is None:
        return batched
    return lambda indices: gather(np.asarray(indices, np.int64))


def _waits() -> int:
    """How often this process gave up its core to wait, not because others wanted it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
