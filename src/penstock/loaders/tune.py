"""Which executor, how many workers, how far ahead: measured on the dataset itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.config import DataLoaderConfig
from penstock.loaders.factory import unfit_for_workers
from penstock.loaders.machine import this_machine
from penstock.loaders.monitor import tensors_of
from penstock.loaders.peeking import undisturbed
from penstock.loaders.tune_cache import TuneCache
from penstock.metrics import tree_bytes
from penstock.streaming.budget import format_bytes, parse_bytes

CLOSE = 0.97  # of the fastest: among those the one that takes least of the machine wins
LEAST_BATCHES = 2


@dataclass(eq=False)
class Trial:
    """A configuration, and what was measured of it so far."""

    config: DataLoaderConfig
    loader: ChunkedDataLoader
    first_batch_seconds: float = 0.0
    memory_bytes: int = 0
    samples_per_second: float = 0.0

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        if self.config.executor != "processes":
            return str(self.config.executor)
        return f"{self.config.num_workers} processes, {self.config.prefetch_factor} ahead each"

    def measure(self, seconds: float) -> None:
        """Take batches for so long; the first one of all counts apart."""
        batches = _endless(self.loader)
        begin = perf_counter()
        next(batches)
        self.first_batch_seconds = self.first_batch_seconds or perf_counter() - begin
        begin, samples, count = perf_counter(), 0, 0
        while perf_counter() - begin < seconds or count < LEAST_BATCHES:
            samples += samples_of(next(batches))
            count += 1
        self.samples_per_second = samples / (perf_counter() - begin)
        self.memory_bytes = tree_bytes()


def tune(
    dataset: Any,
    batch_size: int,
    *,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    budget_seconds: float = 10.0,
    memory_budget: int | str = "2GB",
    cached: bool = True,
    verbose: bool = True,
) -> DataLoaderConfig:
    """The fastest way to load this dataset here, found within a budget of time and memory.

    Successive halving: all candidates run for a moment, the better half for twice as long, and so
    on. Among those close to the fastest the cheapest wins. What is delivered is the same for all.
    ``memory_budget`` bounds what workers hold in batches read ahead. The answer is remembered for
    this machine and dataset (``cached=False`` measures anew); progress and a table go to standard
    error, unless ``verbose=False``.

    >>> import torch
    >>> config = tune(torch.zeros(4096, 8), 256, budget_seconds=0.2, cached=False, verbose=False)
    >>> config.num_workers if config.executor != "processes" else 0
    0
    """
    memory = TuneCache.of(dataset, batch_size, collate_fn, this_machine())
    if cached and (known := memory.load()) is not None:
        return replace(known, collate_fn=collate_fn)
    say = _say if verbose else _say_nothing
    with undisturbed(), ExitStack() as loaders:
        trials = candidates(dataset, batch_size, collate_fn, memory_budget, say)
        for trial in trials:
            loaders.enter_context(trial.loader)
        best = halve(trials, budget_seconds, say)
    say(table(trials, best))
    if cached:
        memory.save(best.config)
    return best.config


def candidates(
    dataset: Any,
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] | None,
    memory_budget: int | str,
    say: Callable[[str], None],
) -> list[Trial]:
    """Inline, threads, and the processes that can be and fit the budget; cheapest first."""
    base = DataLoaderConfig(batch_size, num_workers=0, collate_fn=collate_fn, executor="inline")
    configs = [base]
    cores = this_machine().cores
    if cores > 1:
        configs.append(replace(base, executor="threads"))
    unfit = unfit_for_workers(dataset, {"collate_fn": collate_fn})
    if unfit is not None:
        say(f"no processes: {unfit}")
    else:
        batch_bytes = _batch_bytes(dataset, base)
        configs += process_configs(base, cores, batch_bytes, parse_bytes(memory_budget), say)
    return [Trial(config, ChunkedDataLoader(dataset, **config.options())) for config in configs]


def process_configs(
    base: DataLoaderConfig,
    cores: int,
    batch_bytes: int,
    budget: int,
    say: Callable[[str], None],
) -> Iterator[DataLoaderConfig]:
    """Worker counts up to the cores, two depths each, as far as the budget goes."""
    counts = sorted({1, cores, *(2**i for i in range(1, 5) if 2**i <= cores)})
    for workers in counts:
        for ahead in (2, 4):
            needed = workers * ahead * batch_bytes
            if needed > budget:
                say(
                    f"{workers} processes, {ahead} ahead: {format_bytes(needed)} is over the budget"
                )
                continue
            yield replace(base, num_workers=workers, prefetch_factor=ahead, executor="processes")


def halve(trials: Sequence[Trial], seconds: float, say: Callable[[str], None]) -> Trial:
    """The best trial: rounds of equal time, each with the better half of the one before."""
    rounds = max(1, (len(trials) - 1).bit_length())
    alive = list(trials)
    for number in range(1, rounds + 1):
        for trial in reversed(alive):  # processes first: no thread lives when they are forked
            say(f"round {number}/{rounds}: {trial.name}")
            trial.measure(seconds / rounds / len(alive))
        alive.sort(key=lambda trial: -trial.samples_per_second)
        for trial in alive[-(-len(alive) // 2) :] if number < rounds else ():
            trial.loader.close()
            alive.remove(trial)
    fastest = alive[0].samples_per_second
    close = [t for t in trials if t in alive and t.samples_per_second >= CLOSE * fastest]
    return close[0]  # candidates come cheapest first


def table(trials: Sequence[Trial], best: Trial) -> str:
    """What was measured, and the choice."""
    lines = [f"{'':2}{'executor':32}{'samples/s':>12}{'first batch':>13}{'memory':>10}"]
    for trial in sorted(trials, key=lambda trial: -trial.samples_per_second):
        lines.append(
            f"{'* ' if trial is best else '  '}{trial.name:32}{trial.samples_per_second:12,.0f}"
            f"{trial.first_batch_seconds * 1e3:10.1f} ms{format_bytes(trial.memory_bytes):>10}"
        )
    return "\n".join(lines)


def samples_of(batch: Any) -> int:
    """How many samples a batch has."""
    for tensor in tensors_of(batch):
        return len(tensor) if tensor.ndim else 1
    return len(batch) if isinstance(batch, list | tuple) else 1


def _endless(loader: ChunkedDataLoader) -> Iterator[Any]:
    while True:
        yield from loader


def _batch_bytes(dataset: Any, config: DataLoaderConfig) -> int:
    batch = ChunkedDataLoader(dataset, **config.options()).peek()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(batch))


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _say_nothing(text: str) -> None:
    pass
