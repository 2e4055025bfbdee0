"""`tune`: measure which executor, how many workers and how much read-ahead are fastest."""

from __future__ import annotations

import io
import json
import logging
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from penstock.arguments import flag, function, real_number, whole_number
from penstock.atomic_files import replace_text
from penstock.datasets.gather import fingerprint_of
from penstock.errors import ConfigError
from penstock.loaders.base import Loader
from penstock.loaders.machine import Machine, this_machine
from penstock.loaders.options import check_dataset
from penstock.loaders.pass_through import preserve_random_state
from penstock.loaders.worker_errors import state_of, twin, unpicklable_part
from penstock.sizes import format_bytes, parse_bytes
from penstock.sources.base import Source
from penstock.tuning.config import DataLoaderConfig
from penstock.tuning.cost import SampleCost, cost_of
from penstock.tuning.factory import why_no_workers
from penstock.tuning.trials import Print, Trial, best_of, table

log = logging.getLogger("penstock")

MOST_READERS = 16
DEEPER = 4  # batches ahead, compared with torch's 2 if worker processes won
HALVING_SHARE = 0.7  # of the time; the rest is for `DEEPER` and for workers to start
SHORT_BATCH_SECONDS = 0.02  # much longer than handing a batch over, much shorter than a budget
CACHED_SETTINGS = ("batch_size", "num_workers", "prefetch_factor", "executor", "threads")
MOST_NESTED = 4  # datasets that wrap datasets, as far as they are compared
MOST_ITEMS = 8  # of a list that are compared


def tune(
    dataset: Any,
    batch_size: int,
    *,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    budget_seconds: float = 10.0,
    memory_budget: int | str = "2GB",
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
        memory_budget: Limit on the batches that are read ahead: bytes, or ``"2GB"``.
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
    cache = TuneCache.of(dataset, batch_size, collate_fn, (budget, step_seconds), this_machine())
    if cached and (known := cache.load()) is not None:
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
        cache.save(chosen)
    return chosen


def _check_tunable(dataset: Any) -> None:
    check_dataset(dataset)
    kind = type(dataset).__name__
    if isinstance(dataset, Loader | Source):
        raise ConfigError(
            f"{kind} is not a dataset: StreamLoader over a source chooses its own threads and "
            "memory; pass tune() a map-style dataset"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"{kind} has no samples by index, so executors cannot be compared on the same order: "
            "pass tune() a map-style dataset"
        )
    try:
        samples = len(dataset)
    except TypeError as error:
        raise ConfigError(f"{kind} has no length ({error}): give it a __len__") from error
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
    most = min(cores, MOST_READERS)
    if cost.waits:
        many = sorted({most, min(4 * most, MOST_READERS), MOST_READERS})
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


@dataclass(frozen=True, slots=True)
class TuneCache:
    """The saved result of `tune`: one JSON file per machine, dataset and arguments."""

    path: Path

    @classmethod
    def of(
        cls, dataset: Any, batch_size: int, collate_fn: Any, limits: Any, machine: Machine
    ) -> TuneCache:
        """Return the cache entry for these arguments."""
        parts = (
            *(platform.node(), machine, torch.__version__),
            *(len(dataset), fingerprint_of(dataset), identity_of(dataset)),
            *(batch_size, identity_of(collate_fn), limits),
        )
        name = blake2b(repr(parts).encode(), digest_size=12).hexdigest()
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(home / "penstock" / "tune" / f"{name}.json")

    def load(self) -> DataLoaderConfig | None:
        """Return the saved settings; None if there are none, or the file is damaged."""
        try:
            found = json.loads(self.path.read_text())
            return DataLoaderConfig(**{name: found[name] for name in CACHED_SETTINGS})
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def save(self, config: DataLoaderConfig) -> None:
        """Save the settings, atomically. If the file cannot be written, that is logged."""
        settings = {name: getattr(config, name) for name in CACHED_SETTINGS}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self.path, json.dumps(settings))
        except OSError as error:
            log.info("cannot save the tuned settings: %s", error)


def identity_of(value: Any, depth: int = MOST_NESTED) -> Any:
    """Return what distinguishes a dataset or function from others: its type and attributes.

    >>> identity_of(Path("a")) == identity_of(Path("b"))
    False
    """
    if isinstance(value, bool | int | float | str | bytes | Path | None):
        return value
    if isinstance(value, torch.Tensor | np.ndarray):
        return tuple(value.shape), str(value.dtype)
    if isinstance(value, list | tuple):
        return len(value), [identity_of(inner, depth - 1) for inner in value[:MOST_ITEMS] if depth]
    if isinstance(value, dict):
        return [(identity_of(k, 0), identity_of(v, depth - 1)) for k, v in value.items() if depth]
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    inner = state_of(value) if depth and kind is not value else {}
    named = [(name, identity_of(part, depth - 1)) for name, part in inner.items()]
    return kind.__module__, kind.__qualname__, named
