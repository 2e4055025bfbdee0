"""Is reading hidden behind training?

Control: the same loads and steps one after the other. Ideal: everything but the first load is
hidden. Loading and training only wait here, as a disk and an accelerator would let the CPU wait.

    python benchmarks/bench_overlap.py [--tiny] [--rounds 3] [--chunks 20]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from measure import arguments, claim, emit, interleaved, ratio, report, run

from penstock import RandomChunkLoader, StreamLoader
from penstock.sources import Arrays, MemorySource

ROWS = 64  # of a chunk; what they are is of no importance


class SlowSource(MemorySource):
    """Each block takes a while to read, and one block is a chunk."""

    block_samples = ROWS

    def __init__(self, chunks: int, load_seconds: float) -> None:
        super().__init__(np.zeros((chunks * ROWS, 4), np.float32))
        self.load_seconds, self.disk = load_seconds, ThreadPoolExecutor(1)

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Wait, then read; one disk: one read at a time, in the order of asking."""
        self.disk.submit(time.sleep, self.load_seconds).result()
        super().read(start, stop, out)

    def view(self, start: int, stop: int) -> None:
        """Nothing to look at in place."""
        return


def one_after_the_other(chunks: int, load: float, train: float) -> float:
    begin = time.perf_counter()
    for _ in range(chunks):
        time.sleep(load)
        time.sleep(train)
    return time.perf_counter() - begin


def random_chunks(chunks: int, load: float, train: float, waits: list[float]) -> float:
    source = SlowSource(chunks, load)

    def load_fn(start: int, stop: int) -> np.ndarray:
        out = np.empty((stop - start, 4), np.float32)
        source.read(start, stop, {"": out})
        return out

    with RandomChunkLoader(load_fn, chunks * ROWS, chunk_size=ROWS, seed=0) as loader:
        begin = time.perf_counter()
        loader.start_epoch(num_chunks=chunks)
        train_on(lambda: loader.get_next_chunk()[0], chunks, train, waits)
        return time.perf_counter() - begin


def streamed(chunks: int, load: float, train: float, waits: list[float]) -> float:
    source = SlowSource(chunks, load)
    with StreamLoader(source, batch_size=ROWS, block_samples=ROWS, window_blocks=1) as loader:
        begin = time.perf_counter()
        batches = iter(loader)
        train_on(lambda: next(batches), chunks, train, waits)
        return time.perf_counter() - begin


def train_on(get: Callable[[], object], chunks: int, train: float, waits: list[float]) -> None:
    """``waits``: of every chunk but the first, for which nothing could be done."""
    for i in range(chunks):
        begin = time.perf_counter()
        assert get() is not None
        if i:
            waits.append(time.perf_counter() - begin)
        time.sleep(train)


def main() -> None:
    options = arguments(__doc__, rounds=3, chunks=20)
    chunks, scale = (4, 0.1) if options.tiny else (options.chunks, 1.0)
    for load_ms, train_ms in ((100, 100), (60, 100)):
        load, train = scale * load_ms / 1e3, scale * train_ms / 1e3
        waits: dict[str, list[float]] = {"RandomChunkLoader": [], "StreamLoader": []}
        cases = {
            "one after the other": lambda a=load, b=train: one_after_the_other(chunks, a, b),
            "RandomChunkLoader": lambda a=load, b=train, w=waits: random_chunks(
                chunks, a, b, w["RandomChunkLoader"]
            ),
            "StreamLoader": lambda a=load, b=train, w=waits: streamed(
                chunks, a, b, w["StreamLoader"]
            ),
        }
        seconds = interleaved(cases, rounds=options.rounds, warmup=0)
        report(seconds, load_ms=load_ms, train_ms=train_ms, chunks=chunks)
        ideal = chunks * (load + train) / (load + chunks * max(load, train))
        for name, waited in waits.items():
            gain = ratio(seconds, name, "one after the other")
            emit(case=name, load_ms=load_ms, speed_up=gain, ideal=ideal)
            if load_ms == train_ms:
                claim(f"{name}: share of the ideal speed-up", gain / ideal, at_least=0.97)
            else:
                share = sum(waited) / sum(seconds[name])
                claim(f"{name}: share of the time waited", share, at_most=0.02)
    emit(load_average=os.getloadavg()[0])


if __name__ == "__main__":
    sys.exit(run(main, __file__))
