"""`tune`: measure which executor, how many workers and how much read-ahead are fastest."""

from __future__ import annotations

import io
import json
import logging
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import IterableDataset

from penstock.arguments import flag, format_bytes, function, parse_bytes, real_number, whole_number
from penstock.atomic_files import cache_path, write_cache
from penstock.datasets.gather import fingerprint_of
from penstock.errors import ConfigError
from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.options import check_dataset
from penstock.loaders.pass_through import preserve_random_state
from penstock.loaders.worker_errors import state_of, twin, unpicklable_part
from penstock.metrics import Delivery, arrays_of, samples_of, steady, tree_bytes
from penstock.sources.contract import DatasetLike, Source
from penstock.tuning.cost import SampleCost, cost_of
from penstock.tuning.factory import DataLoaderConfig, why_no_workers
from penstock.tuning.machine import Machine, this_machine

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
                for arrival, now in self._timed(chain.from_iterable(repeat(loader)), begin):
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


log = logging.getLogger("penstock")

MAX_READERS = 16
DEEPER = 4  # batches ahead, compared with torch's 2 if worker processes won
HALVING_SHARE = 0.7  # of the time; the rest is for `DEEPER` and for workers to start
SHORT_BATCH_SECONDS = 0.02  # much longer than handing a batch over, much shorter than a budget
CACHED_SETTINGS = ("batch_size", "num_workers", "prefetch_factor", "executor", "threads")
MAX_NESTED = 4  # datasets that wrap datasets, as far as they are compared
MAX_ITEMS = 8  # of a list that are compared


def tune(
    dataset: DatasetLike,
    batch_size: int,
    *,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    budget_seconds: float = 10.0,
    memory_budget: int | str = "1GB",
    step_seconds: float = 0.0,
    cached: bool = True,
    verbose: bool = True,
) -> DataLoaderConfig:
    """Return the fastest settings for this dataset on this machine, found by measuring.

    All candidates run for a short time, the faster half for twice as long, and so on. Among those
    close to the fastest, the one that needs least of the machine wins. All candidates deliver the
    same batches. Progress and a table are printed to standard error.

    Args:
        dataset: A map-style dataset with at least one sample.
        batch_size: Number of samples in a batch.
        collate_fn: Makes a batch from a list of samples. None uses torch's default.
        budget_seconds: How long to measure, 0 or more. The start of workers may add to it.
        memory_budget: Limit on the batches that are read ahead: bytes, or ``"1GB"``.
        step_seconds: How long an accelerator is busy with a batch, 0 or more. The fastest training
            wins then: readers that are slower than a plain loop may win by reading meanwhile.
        cached: Return the result of an earlier call for this machine and dataset, and save this
            one. False measures again.
        verbose: Print progress and the table.

    Raises:
        ConfigError: An argument is invalid, or the dataset has no samples by index.

    >>> config = tune(torch.zeros(4096, 8), 256, budget_seconds=0.2, cached=False, verbose=False)
    >>> config.num_workers if config.executor != "processes" else 0
    0
    """
    _check_tunable(dataset)
    seconds = partial(real_number, minimum=0, error=ConfigError)
    batch_size = whole_number("batch_size", batch_size, minimum=1, unit="sample", error=ConfigError)
    collate_fn = function("collate_fn", collate_fn, error=ConfigError)
    budget_seconds = seconds("budget_seconds", budget_seconds)
    step_seconds = seconds("step_seconds", step_seconds)
    if isinstance(memory_budget, str):
        memory_budget = parse_bytes(memory_budget, "memory_budget")
    budget = whole_number("memory_budget", memory_budget, minimum=1, unit="byte", error=ConfigError)
    cached = flag("cached", cached, error=ConfigError)
    verbose = flag("verbose", verbose, error=ConfigError)
    report: Print = partial(print, file=sys.stderr) if verbose else len
    path = result_path(this_machine(), dataset, batch_size, collate_fn, budget, step_seconds)
    if cached and (known := load_result(path)) is not None:
        report(f"{Trial(known, dataset).name}: measured before; cached=False measures again")
        return replace(known, batch_size=batch_size, collate_fn=collate_fn)
    with preserve_random_state():
        deadline = perf_counter() + budget_seconds
        trials = _candidates(dataset, batch_size, collate_fn, budget, step_seconds, report)
        best = best_of(trials, HALVING_SHARE * budget_seconds, deadline, report)
        if best.config.num_workers and perf_counter() < deadline:
            deeper = replace(best.config, prefetch_factor=DEEPER)
            trials.append(Trial(deeper, dataset, step_seconds=best.step_seconds))
            best = best_of([best, trials[-1]], deadline - perf_counter(), deadline, report)
    report(table(trials, best))
    chosen = replace(best.config, batch_size=batch_size)
    if cached:
        save_result(path, chosen)
    return chosen


def _check_tunable(dataset: Any) -> None:
    check_dataset(dataset)
    kind = type(dataset).__name__
    if isinstance(dataset, Loader | Source):
        advice = "StreamLoader over a source chooses its own threads"
        raise ConfigError(f"{kind} is not a dataset: {advice}")
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(f"{kind} has no samples by index: pass a map-style dataset")
    try:
        samples = len(dataset)
    except TypeError as error:
        raise ConfigError(f"{kind} has no length ({error}): add a __len__") from error
    if samples == 0:
        raise ConfigError(f"{kind} is empty: there is nothing to measure")


def _candidates(
    dataset: Any,
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] | None,
    budget: int,
    step_seconds: float,
    report: Print,
) -> list[Trial]:
    """Return the possible trials that fit the memory budget, those that need least first."""
    no_workers = why_no_workers(dataset, {"collate_fn": collate_fn})
    # read from a copy: files that are open in this process must not be shared with workers
    own = dataset if no_workers else twin(dataset)
    cost = cost_of(own)
    short = short_batch(batch_size, cost, step_seconds)
    base = DataLoaderConfig(short, num_workers=0, collate_fn=collate_fn, executor="inline")
    step = step_seconds * short / batch_size
    threads, processes = reader_counts(this_machine().cores, cost)

    def fits(config: DataLoaderConfig) -> bool:
        readers = config.threads or config.num_workers
        ahead = DEEPER if config.num_workers else 2  # each thread reads two batches ahead
        needed = readers * ahead * cost.nbytes * batch_size
        if needed > budget:
            report(f"{readers} {config.executor}: {format_bytes(needed)} exceeds memory_budget")
        return needed <= budget

    trials = [Trial(base, own, step_seconds=step)]
    culprit = unpicklable_part(own, "dataset")  # includes what reading a sample opened
    if culprit is not None and isinstance(culprit.value, io.IOBase):
        report(f"no threads: {culprit} has one file position, which threads would change")
    else:
        configs = [replace(base, executor="threads", threads=n) for n in threads]
        expected = trials[0].seen
        trials += [Trial(c, own, expected, step_seconds=step) for c in configs if fits(c)]
    if no_workers is not None:
        report(f"no processes: {no_workers}")
        return trials
    configs = [replace(base, executor="processes", num_workers=n) for n in processes]
    return trials + [Trial(c, dataset, step_seconds=step) for c in configs if fits(c)]


def reader_counts(cores: int, cost: SampleCost) -> tuple[list[int], list[int]]:
    """Return the numbers of threads and of processes to try.

    Normally at most one process per core. If most of a sample's time is waiting for storage, more
    readers than cores are tried, because readers that wait need no core.

    >>> reader_counts(8, SampleCost(0.01, 0.0, 100, False))
    ([8], [1, 2, 4, 8])
    >>> reader_counts(2, SampleCost(0.01, 0.01, 100, False))
    ([2, 8, 16], [2, 8, 16])
    """
    most = min(cores, MAX_READERS)
    if cost.waits:
        many = sorted({most, min(4 * most, MAX_READERS), MAX_READERS})
        return many, many
    return [max(2, most)], sorted({most, *(2**i for i in range(5) if 2**i <= most)})


def short_batch(batch_size: int, cost: SampleCost, step_seconds: float = 0.0) -> int:
    """Return the batch size to measure with: small if samples or steps take long.

    >>> short_batch(256, SampleCost(5e-3, 0.0, 100, False))
    4
    >>> short_batch(256, SampleCost(1e-5, 0.0, 100, False))
    256
    >>> short_batch(256, SampleCost(1e-5, 0.0, 100, False), step_seconds=0.08)
    64
    """
    seconds = max(cost.seconds if cost.is_costly else 0.0, step_seconds / batch_size)
    return min(batch_size, max(1, int(SHORT_BATCH_SECONDS / seconds))) if seconds else batch_size


def result_path(machine: Machine, dataset: Any, *arguments: Any) -> Path:
    """Return the file with the result of `tune` for a machine, a dataset and arguments."""
    here = platform.node(), machine, torch.__version__
    data = len(dataset), fingerprint_of(dataset), identity_of(dataset)
    return cache_path("tune", repr((*here, *data, *map(identity_of, arguments))))


def save_result(path: Path, config: DataLoaderConfig) -> None:
    """Save the settings atomically; a file that cannot be written is logged."""
    write_cache(path, {name: getattr(config, name) for name in CACHED_SETTINGS})


def load_result(path: Path) -> DataLoaderConfig | None:
    """Return the saved settings; None if there are none, or the file is damaged."""
    try:
        found = json.loads(path.read_text())
        return DataLoaderConfig(**{name: found[name] for name in CACHED_SETTINGS})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def identity_of(value: Any, depth: int = MAX_NESTED) -> Any:
    """Return what distinguishes a dataset or function from others: its type and attributes.

    >>> identity_of(Path("a")) == identity_of(Path("b"))
    False
    """
    if isinstance(value, bool | int | float | str | bytes | Path | None):
        return value
    if isinstance(value, torch.Tensor | np.ndarray):
        return tuple(value.shape), str(value.dtype)
    if isinstance(value, list | tuple):
        return len(value), [identity_of(inner, depth - 1) for inner in value[:MAX_ITEMS] if depth]
    if isinstance(value, dict):
        return [(identity_of(k, 0), identity_of(v, depth - 1)) for k, v in value.items() if depth]
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    inner = state_of(value) if depth and kind is not value else {}
    named = [(name, identity_of(part, depth - 1)) for name, part in inner.items()]
    return kind.__module__, kind.__qualname__, named
