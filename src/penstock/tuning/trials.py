"""One configuration on trial: it runs for a moment, and what was measured is kept."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event
from time import perf_counter
from typing import Any

import numpy as np

from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.machine import this_machine
from penstock.metrics import Delivery, steady, tree_bytes
from penstock.tuning.config import DataLoaderConfig
from penstock.tuning.contents import arrays_of, samples_of

AHEAD = 2  # batches each reader is asked for at once, where nothing is said
COMPARED = 2  # batches that threads must give as they are read inline


@dataclass(eq=False)
class Trial:
    """A configuration over a dataset, and what was measured of it so far.

    Attributes:
        expected: The first batches, as another trial had them; a trial whose batches are others
            is refused.
        seen: Its own first batches.
        step_seconds: How long a device is busy with each batch; the next ones are read meanwhile,
            where something reads ahead.
    """

    config: DataLoaderConfig
    dataset: Any = field(repr=False)
    expected: list[Any] = field(default_factory=list, repr=False)
    seen: list[Any] = field(default_factory=list, repr=False)
    step_seconds: float = 0.0
    first_batch_seconds: float = 0.0
    memory_bytes: int = 0
    samples: int = 0
    seconds: float = 0.0
    refused: str | None = None

    @property
    def readers(self) -> int:
        """Batches that are read at once."""
        if self.config.executor == "threads":
            return self.config.threads or max(2, this_machine().cores)
        return max(1, self.config.num_workers)

    @property
    def in_flight(self) -> int:
        """Batches that are asked for before the first one comes."""
        if self.config.executor == "inline":
            return COMPARED
        return self.readers * (self.config.prefetch_factor or AHEAD)

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        if self.config.executor == "inline":
            return "inline"
        ahead = f", {self.config.prefetch_factor} ahead" if self.config.num_workers else ""
        return f"{self.readers} {self.config.executor}{ahead}"

    @property
    def samples_per_second(self) -> float:
        """What it delivers, over all its runs; 0 where it did not run, or may not."""
        return 0.0 if self.refused or not self.seconds else self.samples / self.seconds

    def run(self, seconds: float, deadline: float) -> None:
        """Take batches for ``seconds``, with workers and threads that end with it.

        Batches that were ready when they were asked for would look like speed: what was in flight
        when the first batch arrived does not count, and the clock runs from one batch that was
        waited for to another. Where the deadline leaves no time for that, the whole run counts,
        the start of its workers too.
        """
        arrivals, device = [], Event()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # storage may want it
            begin = perf_counter()
            with ChunkedDataLoader(self.dataset, **self.config.options()) as loader:
                for arrival, now in self._timed(_endless(loader), begin):
                    arrivals.append(arrival)
                    if now >= deadline or self._is_enough(arrivals, seconds):
                        break
                    if self.step_seconds:
                        device.wait(min(self.step_seconds, deadline - now))
                self.memory_bytes = tree_bytes()
        complete = len(arrivals) >= self.in_flight + self.readers
        counted = steady(arrivals, self.in_flight) if complete else arrivals
        self.samples += sum(each.samples for each in counted)
        self.seconds += sum(each.seconds for each in counted)

    def _is_enough(self, arrivals: list[Delivery], seconds: float) -> bool:
        if len(arrivals) < self.in_flight + 2 * self.readers:
            return False
        return sum(each.seconds for each in arrivals[self.in_flight :]) >= seconds

    def _timed(self, batches: Iterator[Any], begin: float) -> Iterator[tuple[Delivery, float]]:
        """Each batch, with the seconds since the one before, and when it arrived."""
        for batch in batches:
            now = perf_counter()
            self.first_batch_seconds = self.first_batch_seconds or now - begin
            self._keep(batch)
            yield Delivery(now - begin, samples_of(batch), 0), now
            begin = now

    def _keep(self, batch: Any) -> None:
        place = len(self.seen)
        if place >= COMPARED:
            return
        self.seen.append(batch)
        if place < len(self.expected) and not same_arrays(batch, self.expected[place]):
            self.refused = (
                "its batches are not those read inline: the dataset draws from an ambient "
                "generator, or is not safe to read from several threads"
            )


def same_arrays(one: Any, other: Any) -> bool:
    """Are all tensors and arrays of two batches equal, bit by bit?"""
    first, second = ([np.asarray(array) for array in arrays_of(batch)] for batch in (one, other))
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(first, second, strict=True)
    )


def _endless(loader: ChunkedDataLoader) -> Iterator[Any]:
    while True:
        yield from loader
