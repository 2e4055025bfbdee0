"""Which executor, how many workers, how far ahead: measured on the dataset itself."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

from torch.utils.data import IterableDataset

from penstock.arguments import flag, function, real_number, whole_number
from penstock.errors import ConfigError
from penstock.loaders.base import Loader
from penstock.loaders.machine import this_machine
from penstock.loaders.options import check_dataset
from penstock.loaders.pass_through import preserve_random_state
from penstock.loaders.pickling import twin, unpicklable_part
from penstock.sizes import format_bytes, parse_bytes
from penstock.sources.base import Source
from penstock.tuning.config import DataLoaderConfig
from penstock.tuning.costs import SampleCost, cost_of
from penstock.tuning.fitting import unfit_for_workers
from penstock.tuning.trials import Trial
from penstock.tuning.tune_cache import TuneCache

Say: TypeAlias = Callable[[str], None]

CLOSE = 0.97  # of the fastest: among those the one that takes least of the machine wins
MOST_READERS = 16
DEEPER = 4  # batches ahead, tried against torch's two where workers have won
HALVING = 0.7  # of the time; the rest is for that, and for workers to start
BRIEF_SECONDS = 0.02  # of a batch: much longer than handing it over, much shorter than a budget


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
    """The fastest way to load this dataset here, found within a budget of time and memory.

    Successive halving: all candidates run for a moment, the better half for twice as long, and so
    on. Among those close to the fastest the cheapest wins. All deliver the same batches. Progress
    and a table are printed to standard error.

    Args:
        dataset: A map-style dataset with one sample or more.
        batch_size: Samples of a batch.
        collate_fn: Makes a batch of a list of samples; None for torch's default.
        budget_seconds: How long to measure, 0 or more; the start of workers may add to it.
        memory_budget: Bound on what is held in batches read ahead: bytes, or ``"2GB"``.
        step_seconds: How long an accelerator is busy with a batch, 0 or more. Then what trains
            fastest wins, which may be readers that are slower than a plain loop but read
            meanwhile.
        cached: Use the answer of an earlier call for this machine and dataset, and save this one;
            False measures again.
        verbose: Print progress and the table.

    >>> import torch
    >>> config = tune(torch.zeros(4096, 8), 256, budget_seconds=0.2, cached=False, verbose=False)
    >>> config.num_workers if config.executor != "processes" else 0
    0
    """
    check_tunable(dataset)
    checked = partial(real_number, minimum=0, error=ConfigError)
    batch_size = whole_number("batch_size", batch_size, minimum=1, unit="sample", error=ConfigError)
    collate_fn = function("collate_fn", collate_fn, error=ConfigError)
    budget_seconds = checked("budget_seconds", budget_seconds)
    step_seconds = checked("step_seconds", step_seconds)
    budget = check_budget(memory_budget)
    cached, verbose = (
        flag(name, value, error=ConfigError)
        for name, value in (("cached", cached), ("verbose", verbose))
    )
    say = _say if verbose else _say_nothing
    memory = TuneCache.of(dataset, batch_size, collate_fn, (budget, step_seconds), this_machine())
    if cached and (known := memory.load()) is not None:
        say(f"{Trial(known, dataset).name}: measured before; cached=False measures again")
        return replace(known, batch_size=batch_size, collate_fn=collate_fn)
    with preserve_random_state():
        deadline = perf_counter() + budget_seconds
        trials = candidates(dataset, batch_size, collate_fn, budget, step_seconds, say)
        for trial in trials:
            trial.step_seconds = step_seconds * trial.config.batch_size / batch_size
        best = halve(trials, HALVING * budget_seconds, deadline, say)
        if best.config.num_workers and perf_counter() < deadline:
            deeper = replace(best.config, prefetch_factor=DEEPER)
            trials.append(Trial(deeper, dataset, step_seconds=best.step_seconds))
            best = halve([best, trials[-1]], deadline - perf_counter(), deadline, say)
    say(table(trials, best))
    chosen = replace(best.config, batch_size=batch_size)
    if cached:
        memory.save(chosen)
    return chosen


def check_tunable(dataset: Any) -> None:
    """Refuse what is not a map-style dataset with samples in it."""
    check_dataset(dataset)
    kind = type(dataset).__name__
    if isinstance(dataset, Loader | Source):
        raise ConfigError(
            f"{kind} is no dataset: StreamLoader over a source finds its own threads and memory; "
            "tune() is for map-style datasets"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"{kind} has no samples by index, so there is no order that all executors could "
            "share: give tune() a map-style dataset"
        )
    try:
        samples = len(dataset)
    except TypeError as error:
        raise ConfigError(f"{kind} has no length ({error}): give it a __len__") from error
    if samples == 0:
        raise ConfigError(f"{kind} is empty: there is nothing to measure")


def check_budget(memory_budget: Any) -> int:
    """A bound on memory, in bytes."""
    if isinstance(memory_budget, str):
        memory_budget = parse_bytes(memory_budget, "memory_budget")
    return whole_number("memory_budget", memory_budget, minimum=1, unit="byte", error=ConfigError)


def candidates(
    dataset: Any,
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] | None,
    budget: int,
    step_seconds: float,
    say: Say,
) -> list[Trial]:
    """Inline, threads, and the processes that can be and fit the budget; cheapest first."""
    unfit = unfit_for_workers(dataset, {"collate_fn": collate_fn})
    own = dataset if unfit else twin(dataset)  # what opens here is not open in the workers
    cost = cost_of(own)
    brief = brief_batch(batch_size, cost, step_seconds)
    base = DataLoaderConfig(brief, num_workers=0, collate_fn=collate_fn, executor="inline")
    fits = _Fits(budget, cost.nbytes * batch_size, say)
    threads, processes = reader_counts(this_machine().cores, cost)
    trials = [Trial(base, own)]
    culprit = unpicklable_part(own, "dataset")  # also of what a first sample opened
    if culprit is not None and isinstance(culprit.value, io.IOBase):
        say(f"no threads: {culprit} has one position, which they would move for each other")
    else:
        configs = [replace(base, executor="threads", threads=n) for n in threads]
        trials += [Trial(config, own, trials[0].seen) for config in configs if fits(config)]
    if unfit is not None:
        say(f"no processes: {unfit}")
        return trials
    configs = [replace(base, executor="processes", num_workers=n) for n in processes]
    return trials + [Trial(config, dataset) for config in configs if fits(config)]


def reader_counts(cores: int, cost: SampleCost) -> tuple[list[int], list[int]]:
    """Numbers of threads and of processes to try.

    Processes up to the cores; beyond them, and threads too, where storage answers late: readers
    that wait take no core.

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


def brief_batch(batch_size: int, cost: SampleCost, step_seconds: float = 0.0) -> int:
    """The batch size to measure with: of costly samples or steps a few, so there are many batches.

    >>> brief_batch(256, SampleCost(5e-3, 0.0, 100, False))
    4
    >>> brief_batch(256, SampleCost(1e-5, 0.0, 100, False))
    256
    >>> brief_batch(256, SampleCost(1e-5, 0.0, 100, False), step_seconds=0.08)
    64
    """
    seconds = max(cost.seconds if cost.is_costly else 0.0, step_seconds / batch_size)
    return min(batch_size, max(1, int(BRIEF_SECONDS / seconds))) if seconds else batch_size


class _Fits:
    """Does a configuration stay within the budget? Says so where it does not."""

    def __init__(self, budget: int, batch_bytes: int, say: Say) -> None:
        self._budget, self._batch_bytes, self._say = budget, batch_bytes, say

    def __call__(self, config: DataLoaderConfig) -> bool:
        readers = config.threads or config.num_workers
        ahead = DEEPER if config.num_workers else 2  # threads read two ahead each
        needed = readers * ahead * self._batch_bytes
        if needed > self._budget:
            self._say(f"{readers} {config.executor}: {format_bytes(needed)} is over the budget")
        return needed <= self._budget


def halve(trials: list[Trial], seconds: float, deadline: float, say: Say) -> Trial:
    """The best trial: rounds of equal time, each with the better half of the one before.

    Workers take their time to start. That is not counted against them, but when the deadline has
    come what was measured until then decides.
    """
    rounds = max(1, (len(trials) - 1).bit_length())
    alive = list(trials)
    for number in range(1, rounds + 1):
        for trial in alive:
            left = deadline - perf_counter()
            if left > start_seconds(trial, trials) or not any(each.seconds for each in trials):
                say(f"round {number}/{rounds}: {trial.name}")
                trial.run(seconds / rounds / len(alive), deadline)
        alive = [trial for trial in alive if not trial.refused]
        alive.sort(key=lambda trial: -trial.samples_per_second)
        if number < rounds:
            del alive[-(-len(alive) // 2) :]
    fastest = max(trial.samples_per_second for trial in alive)
    close = (t for t in trials if t in alive and t.samples_per_second >= CLOSE * fastest)
    return next(close)  # candidates come cheapest first


def start_seconds(trial: Trial, trials: Sequence[Trial]) -> float:
    """How long its workers will take to start, going by those that did: they start one by one."""
    if not trial.config.num_workers:
        return 0.0
    started = [each for each in trials if each.config.num_workers and each.seconds]
    return trial.readers * max((t.first_batch_seconds / t.readers for t in started), default=0.0)


def table(trials: Sequence[Trial], best: Trial) -> str:
    """What was measured, and the choice."""
    lines = [f"{'':2}{'executor':32}{'samples/s':>12}{'first batch':>13}{'memory':>10}"]
    for trial in sorted(trials, key=lambda trial: -trial.samples_per_second):
        lines.append(
            f"{'* ' if trial is best else '  '}{trial.name:32}{trial.samples_per_second:12,.0f}"
            f"{trial.first_batch_seconds * 1e3:10.1f} ms{format_bytes(trial.memory_bytes):>10}"
        )
        lines += [f"    {trial.refused}"] if trial.refused else []
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _say_nothing(text: str) -> None:
    pass
