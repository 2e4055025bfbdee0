"""Trial runs of loader configurations, and the selection of the best one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.machine import this_machine
from penstock.metrics import Delivery, arrays_of, samples_of, steady, tree_bytes
from penstock.sizes import format_bytes
from penstock.tuning.config import DataLoaderConfig

Print: TypeAlias = Callable[[str], object]

PREFETCH = 2  # batches requested per reader by default
COMPARED = 2  # number of batches compared with those read inline
CLOSE = 0.97  # of the fastest: among these, the configuration that needs least wins


@dataclass(eq=False)
class Trial:
    """A configuration for a dataset, and what was measured of it so far.

    Args:
        config: The settings of the loader.
        dataset: The dataset to load.
        expected: The first batches of another trial. A trial with different batches is rejected.
        seen: Its own first batches.
        step_seconds: Time that a device is busy with each batch. A loader that reads ahead reads
            the next batches in this time.
        first_batch_seconds: Time until the first batch.
        memory_bytes: Memory in use at the end of the last run.
        samples: Number of samples counted in all runs.
        seconds: Time in which they were read.
        rejected: Why this configuration must not be used.
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
    rejected: str | None = None

    @property
    def readers(self) -> int:
        """Number of batches that are read at the same time."""
        if self.config.executor == "threads":
            return self.config.threads or max(2, this_machine().cores)
        return max(1, self.config.num_workers)

    @property
    def in_flight(self) -> int:
        """Number of batches requested before the first one arrives."""
        if self.config.executor == "inline":
            return COMPARED
        return self.readers * (self.config.prefetch_factor or PREFETCH)

    @property
    def name(self) -> str:
        """A short description of the configuration."""
        if self.config.executor == "inline":
            return "inline"
        ahead = f", {self.config.prefetch_factor} ahead" if self.config.num_workers else ""
        return f"{self.readers} {self.config.executor}{ahead}"

    @property
    def samples_per_second(self) -> float:
        """The throughput over all runs; 0 if it did not run or was rejected."""
        return 0.0 if self.rejected or not self.seconds else self.samples / self.seconds

    def run(self, seconds: float, deadline: float) -> None:
        """Load batches for some seconds, and end all workers and threads.

        Batches that were ready when they were requested would look like speed. Therefore batches
        in flight when the first one arrived do not count, and the clock runs from one batch that
        had to be waited for to another. If the deadline leaves no time for that, the whole run
        counts, including the start of workers.

        Args:
            seconds: How long to measure.
            deadline: The value of ``perf_counter()`` at which to stop in any case.
        """
        arrivals, device = [], Event()
        with warnings.catch_warnings():
            # more workers than cores are tried on purpose: slow storage may need them
            warnings.filterwarnings("ignore", "This DataLoader will create")
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
        """Yield the delivery of each batch, and when it arrived."""
        for batch in batches:
            now = perf_counter()
            self.first_batch_seconds = self.first_batch_seconds or now - begin
            self._compare(batch)
            yield Delivery(now - begin, samples_of(batch), 0), now
            begin = now

    def _compare(self, batch: Any) -> None:
        index = len(self.seen)
        if index >= COMPARED:
            return
        self.seen.append(batch)
        if index < len(self.expected) and not same_arrays(batch, self.expected[index]):
            self.rejected = (
                "rejected: its batches differ from those read inline; the dataset draws from a "
                "global random generator, or is not safe to read from several threads"
            )


def same_arrays(one: Any, other: Any) -> bool:
    """Return whether all tensors and arrays of two batches are equal, bit by bit."""
    first, second = ([np.asarray(array) for array in arrays_of(batch)] for batch in (one, other))
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(first, second, strict=True)
    )


def _endless(loader: ChunkedDataLoader) -> Iterator[Any]:
    while True:
        yield from loader


def best_of(trials: Sequence[Trial], seconds: float, deadline: float, report: Print) -> Trial:
    """Return the best trial, by successive halving.

    All trials run for a short time, the faster half for twice as long, and so on. The start of
    workers is not counted against them. At the deadline, the measurements made so far decide.

    Args:
        trials: The candidates, those that need least of the machine first.
        seconds: How long to measure, all trials together.
        deadline: The value of ``perf_counter()`` at which to stop in any case.
        report: Called with a line about each run.
    """
    rounds = max(1, (len(trials) - 1).bit_length())
    alive = list(trials)
    for number in range(1, rounds + 1):
        for trial in alive:
            left = deadline - perf_counter()
            if left > start_seconds(trial, trials) or not any(each.seconds for each in trials):
                report(f"round {number}/{rounds}: {trial.name}")
                trial.run(seconds / rounds / len(alive), deadline)
        alive = [trial for trial in alive if not trial.rejected]
        alive.sort(key=lambda trial: -trial.samples_per_second)
        if number < rounds:
            del alive[-(-len(alive) // 2) :]
    fastest = max(trial.samples_per_second for trial in alive)
    return next(t for t in trials if t in alive and t.samples_per_second >= CLOSE * fastest)


def start_seconds(trial: Trial, trials: Sequence[Trial]) -> float:
    """Return how long the workers of a trial will take to start, judging by other trials."""
    if not trial.config.num_workers:
        return 0.0
    started = [each for each in trials if each.config.num_workers and each.seconds]
    # workers start one after the other
    return trial.readers * max((t.first_batch_seconds / t.readers for t in started), default=0.0)


def table(trials: Sequence[Trial], best: Trial) -> str:
    """Return the measurements as text, fastest first, with a star at the chosen one."""
    lines = [f"{'':2}{'executor':32}{'samples/s':>12}{'first batch':>13}{'memory':>10}"]
    for trial in sorted(trials, key=lambda trial: -trial.samples_per_second):
        lines.append(
            f"{'* ' if trial is best else '  '}{trial.name:32}{trial.samples_per_second:12,.0f}"
            f"{trial.first_batch_seconds * 1e3:10.1f} ms{format_bytes(trial.memory_bytes):>10}"
        )
        lines += [f"    {trial.rejected}"] if trial.rejected else []
    return "\n".join(lines)
