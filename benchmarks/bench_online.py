"""Does ``tune="online"`` find the number of reader threads that a grid would choose?

Storage that answers each read after a while, several at a time; a remote store does so. The grid is
a loader for each number of threads. The tuned one begins with one thread and is measured when it
has settled, in turns with the best of the grid. All deliver the same batches.

    python benchmarks/bench_online.py [--tiny] [--rounds 5]
"""

from __future__ import annotations

import math
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import arguments, claim, emit, interleaved, ratio, report, run
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader, MemorySource, StreamLoader

ROWS = np.random.default_rng(0).standard_normal((6400, 64), dtype=np.float32)
GRID = (1, 2, 4, 8, 16)
MOST_EPOCHS = 300  # until it settles
CASE_SECONDS = 1.0


class Storage:
    """Answers reads after some seconds, ``parallel`` of them at a time."""

    def __init__(self, seconds: float, parallel: int) -> None:
        self.seconds, self.parallel = seconds, parallel
        self.places = threading.Semaphore(parallel)

    def wait(self) -> None:
        with self.places:
            time.sleep(self.seconds)


class RemoteSource(MemorySource):
    """Blocks of rows from storage."""

    storage: Storage

    def view(self, start: int, stop: int) -> Any:
        self.storage.wait()
        return super().view(start, stop)


class RemoteRows(Dataset[torch.Tensor]):
    """Rows from storage, one at a time."""

    def __init__(self, storage: Storage, samples: int) -> None:
        self.storage, self.rows = storage, torch.from_numpy(ROWS[:samples])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.storage.wait()
        return self.rows[index]


def stream(storage: Storage, **options: Any) -> StreamLoader:
    source = RemoteSource(ROWS)
    source.storage = storage
    return StreamLoader(source, 100, block_samples=100, window_blocks=4, **options)


def one_by_one(storage: Storage, **options: Any) -> ChunkedDataLoader:
    data = RemoteRows(storage, 640)
    return ChunkedDataLoader(data, 8, shuffle=True, executor="threads", **options)


def epoch(loader: Any, times: int = 1) -> float:
    """Return the mean seconds of some epochs."""
    begin = time.perf_counter()
    for _ in range(times):
        for _ in loader:
            pass
    return (time.perf_counter() - begin) / times


def case(loader: Any, tiny: bool) -> Callable[[], float]:
    """Return what reads epochs for a second: reads come in bursts that take as long as an epoch."""
    return partial(epoch, loader, 1 if tiny else math.ceil(CASE_SECONDS / epoch(loader)))


def settled(loader: Any) -> int:
    """Run epochs until the number of threads stays; return it."""
    for _ in range(MOST_EPOCHS):
        epoch(loader)
        if loader._tuner is not None and loader._tuner.settled:
            break
    return int(loader.snapshot().settings["threads"])


def compare(name: str, make: Callable[..., Any], rounds: int, *, tiny: bool) -> None:
    grid = (1, 2) if tiny else GRID
    loaders = {f"{name}, {threads} threads": make(threads=threads) for threads in grid}
    tuned = make(threads=1, tune="online")
    try:
        found = 1 if tiny else settled(tuned)
        cases = {each: case(loader, tiny) for each, loader in loaders.items()}
        seconds = interleaved(cases | {f"{name}, online": case(tuned, tiny)}, rounds=rounds)
        report(seconds)
        best = min(loaders, key=lambda each: statistics.median(seconds[each]))
        emit(case=f"{name}, chosen", threads=found, best=best)
        text = f"{name}: speed of online against the best of the grid"
        claim(text, ratio(seconds, f"{name}, online", best), at_least=0.9)
        with make(threads=2) as one, make(threads=1, tune="online") as other:
            same = all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        claim(f"{name}: share of equal batches", float(same), at_least=1.0)
    finally:
        for loader in (tuned, *loaders.values()):
            loader.close()


def main() -> None:
    options = arguments(__doc__, rounds=5)
    rounds, times = (1, 0.02) if options.tiny else (options.rounds, 1.0)
    for parallel in (4, 16):
        storage = partial(stream, Storage(0.02 * times, parallel))
        compare(f"stream, {parallel} reads at a time", storage, rounds, tiny=options.tiny)
        samples = partial(one_by_one, Storage(0.004 * times, parallel))
        compare(f"samples, {parallel} reads at a time", samples, rounds, tiny=options.tiny)


if __name__ == "__main__":
    sys.exit(run(main, __file__))
