"""What do the probes of a loader cost, switched on and switched off?

Epochs of batches of 1 MB by each executor in an empty loop, which is the worst case: a training
step makes every share smaller. Four loaders take turns, in random order: with probes (the default),
with ``metrics.on = False``, and twice one that calls no recorder at all; how far these two are
apart is the noise. Figures are processor time of the process and its workers, because that is all
that a probe takes, and because it depends least on what else the machine does. A share is the
median of the ratio within a round, over many rounds in which each has 20 ms, and its interval
contains the true median with a confidence of 99 %. Probes that are on must add less than 1 %.
Those that are off are still asked whether they are on, a fraction of a microsecond each: the lower
end of their interval, what they are shown to cost, must be below 0.2 %, and its upper end, the
bound on what they cost, below 1 %. Measure on a quiet machine: a batch is noted every 25 ms of the
clock, which on a busy one is a few batches.

The calls alone are measured too, the fastest of many, which a busy machine changes little.

    python benchmarks/bench_metrics.py [--tiny] [--seconds 20] [--batches 40]
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import zarr
from measure import arguments, claim, emit, run
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from penstock import ChunkedDataLoader, ReplayLoader, StreamLoader
from penstock.loaders.base import Loader
from penstock.metrics import Probe, Recorder

BATCH, WIDTH = 256, 1024  # a batch of 1 MB: a light one
MODES = ("none", "none again", "off", "on")
MOST = 0.01  # of an epoch
SHOWN = 0.002  # of an epoch, for probes that are off
NOISY = {"threads": 4, "workers": 4}  # times the seconds of others
TURN_SECONDS = 0.02


class NoRecorder(Recorder):
    """Measures nothing: the control."""

    def timed(self, work: Callable[[], Any], *_: Any) -> Any:
        return work()


class Rows(Dataset[torch.Tensor]):
    """Samples that are read one by one, as most datasets do."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index] * 2


class Numbers(IterableDataset[torch.Tensor]):
    """Samples without an index."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (row * 2 for row in self.rows)


def makers(folder: Path, samples: int) -> dict[str, Callable[[], Any]]:
    """Return what makes the loader of each executor."""
    rows = torch.randn(samples, WIDTH)
    stored = folder / "rows.zarr"
    zarr.create_array(stored, data=rows.numpy(), chunks=(512, WIDTH), overwrite=True)
    one_by_one = partial(ChunkedDataLoader, Rows(rows), BATCH, shuffle=True)
    return {
        "inline": one_by_one,
        "inline, one gather a batch": partial(
            ChunkedDataLoader, TensorDataset(rows), BATCH, shuffle=True
        ),
        "threads": partial(one_by_one, executor="threads", threads=2),
        "workers": partial(one_by_one, num_workers=1),
        "chunked": partial(one_by_one, chunk_size=10),
        "stream": partial(StreamLoader, stored, BATCH, memory_budget="64MB"),
        "replay": partial(
            ReplayLoader, Numbers(rows), batch_size=BATCH, num_workers=0, collate_fn=None, seed=1
        ),
    }


def with_recorder(make: Callable[[], Any], mode: str) -> Any:
    loader: Any = make()
    if mode.startswith("none"):
        loader.metrics = NoRecorder(on=False)
        if isinstance(loader, Loader):  # a batch without the line that asks whether it is on
            loader._next = lambda plan, _: loader._take(plan, loader.position)
    else:
        loader.metrics = Recorder(on=mode == "on")
    return loader


def seconds_of_epochs(loader: Any, epochs: int) -> float:
    """Return the processor seconds of epochs, with the start and the end of their threads."""
    begin = cpu_seconds()
    for _ in range(epochs * getattr(loader, "total_chunks", 1)):
        for _ in loader:
            pass
    if not getattr(loader, "num_workers", 0):
        getattr(loader, "close", lambda: None)()  # or it reads ahead while another is measured
    return cpu_seconds() - begin


def cpu_seconds() -> float:
    """Return processor seconds of this process, to the microsecond, and of its workers."""
    workers = sum(map(process_cpu_seconds, multiprocessing.active_children()))
    return time.process_time() + workers


def process_cpu_seconds(process: Any) -> float:
    """Return nanoseconds that the scheduler has counted, in seconds."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def going_on(recorder: Recorder) -> Iterator[None]:
    """Stop the clock of a recorder while others have their turn.

    Or the first batch of every turn would be noted, and not one in 25 ms.
    """
    now = time.perf_counter()
    recorder.next_probe += now
    recorder._next_settling += now
    yield
    now = time.perf_counter()
    recorder.next_probe -= now
    recorder._next_settling -= now


def in_turns(make: Callable[[], Any], seconds: float) -> dict[str, list[float]]:
    """Return the processor seconds of an epoch, by turns in which each mode has some epochs."""
    loaders = {mode: with_recorder(make, mode) for mode in MODES}
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    turns, modes = random.Random(0), list(MODES)
    try:
        for loader in loaders.values():  # starts workers, opens files
            seconds_of_epochs(loader, 1)
        usual = min(seconds_of_epochs(loader, 1) for loader in loaders.values())
        epochs = 1 + int(TURN_SECONDS / usual) if seconds else 1
        for loader in loaders.values():
            loader.metrics.next_probe = loader.metrics._next_settling = 0.0
        end = time.perf_counter() + seconds
        while not found["none"] or time.perf_counter() < end:
            turns.shuffle(modes)
            for mode in modes:
                with going_on(loaders[mode].metrics):
                    found[mode].append(seconds_of_epochs(loaders[mode], epochs) / epochs)
    finally:
        for loader in loaders.values():
            getattr(loader, "close", lambda: None)()
    return found


def share(found: dict[str, list[float]], mode: str) -> tuple[float, float, float]:
    """Return the share that a mode adds, and the interval that has it with 99 % confidence."""
    pairs = zip(found[mode], found["none"], strict=True)
    ratios = sorted(one / none - 1 for one, none in pairs)
    half, apart = len(ratios) / 2, 1.29 * len(ratios) ** 0.5  # of the ranks: a binomial deviation
    last = len(ratios) - 1
    low, high = ratios[max(0, int(half - apart))], ratios[min(last, int(half + apart))]
    return statistics.median(ratios), low, high


CALLS = {"on": 0.6, "on, noted": 20.0}  # microseconds
PROBE_OFF = 0.5  # microseconds of a probe where nothing is recorded


def calls(repeats: int) -> None:
    """Measure what a loader calls for a batch: usually, and for the one that is noted in 25 ms."""
    for name, most in CALLS.items():
        recorder, noted = Recorder(), name.endswith("noted")

        def batch(recorder: Recorder = recorder, noted: bool = noted) -> None:
            if noted:
                recorder.next_probe = 0.0
            if recorder.request():
                with recorder.work(""), Probe("read", (0, 8)), Probe("collate"):
                    pass
            recorder.receive(BATCH, (0, 1))
            if noted and len(recorder._noted) >= 20:  # as many as there are in half a second
                recorder._settle()

        claim(
            f"microseconds of the calls for a batch, {name}", fastest(batch, repeats), at_most=most
        )

    def probe() -> None:
        with Probe("read", (0, 8)):
            pass

    claim("microseconds of a probe, off", fastest(probe, repeats), at_most=PROBE_OFF)


def fastest(work: Callable[[], None], repeats: int, number: int = 200) -> float:
    """Return the microseconds of a call, in the fastest of some repetitions."""
    return min(timeit.repeat(work, number=number, repeat=repeats)) / number * 1e6


def main() -> None:
    options = arguments(__doc__, seconds=20.0, batches=40)
    calls(2 if options.tiny else 200)
    seconds, batches = (0.0, 4) if options.tiny else (options.seconds, options.batches)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in makers(Path(folder), batches * BATCH).items():
            found = in_turns(make, seconds * NOISY.get(name, 1))
            each = statistics.median(found["none"]) / batches * 1e6
            noise = share(found, "none again")[0]
            emit(case=name, rounds=len(found["none"]), batch_microseconds=each, noise=noise)
            for mode in ("off", "on"):
                added, low, high = share(found, mode)
                interval = {"low": low, "high": high, "microseconds": added * each}
                emit(case=f"{name}, probes {mode}", share=added, **interval)
                if mode == "on":
                    claim(f"{name}, on: share of an epoch", added, at_most=MOST)
                else:
                    claim(f"{name}, off: lower end of the interval", low, at_most=SHOWN)
                    claim(f"{name}, off: upper end of the interval", high, at_most=MOST)
    emit(load_average=os.getloadavg()[0])


if __name__ == "__main__":
    sys.exit(run(main, __file__))
