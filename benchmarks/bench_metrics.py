"""What do the probes of a loader cost, switched on and switched off?

Epochs of batches of 1 MB by each executor in an empty loop, which is the worst case: a training
step makes every share smaller. Four loaders take turns: with probes (the default), with
``metrics.on = False``, and twice one whose recorder does nothing at all, not even measure waiting;
how far these two are apart is the noise. Figures are processor time of the process and its
workers, because that is all that a probe takes, and because it depends least on what else the
machine does. Shares are medians over rounds of the ratio within a round. Measure on a quiet
machine: a batch is noted every 10 ms of the clock, which on a busy one is a few batches.

The calls alone are measured too, the fastest of many, which a busy machine changes little.

    python benchmarks/bench_metrics.py [--tiny] [--rounds 41] [--batches 40]
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import zarr
from measure import arguments, claim, emit, ratio, run
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from penstock import ChunkedDataLoader, ReplayLoader, StreamLoader
from penstock.metrics import Probe, Recorder

BATCH, WIDTH = 256, 1024  # a batch of 1 MB: a light one
MODES = ("none", "none again", "off", "on")
MOST = {"off": 0.002, "on": 0.01}  # of an epoch, beside the noise


class NoRecorder(Recorder):
    """Measures nothing: the control."""

    def request(self) -> bool:
        return False

    def receive(self, samples: int, cursor: tuple[int, int] | None = None) -> float:
        return 0.0

    def pause(self) -> None:
        pass


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
    loader = make()
    loader.metrics = NoRecorder() if mode.startswith("none") else Recorder(on=mode == "on")
    return loader


def seconds_of_epoch(loader: Any) -> float:
    """Return the processor seconds of an epoch, with the start and the end of its threads."""
    begin = cpu_seconds()
    for _ in range(getattr(loader, "total_chunks", 1)):
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


def shares(make: Callable[[], Any], rounds: int) -> tuple[float, dict[str, float]]:
    """Return the seconds of an epoch without probes, and the share that each mode adds."""
    loaders = {mode: with_recorder(make, mode) for mode in MODES}
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    try:
        for loader in loaders.values():  # starts workers, opens files
            seconds_of_epoch(loader)
        for turn in range(rounds):
            at = turn % len(MODES)
            for mode in MODES[at:] + MODES[:at]:
                found[mode].append(seconds_of_epoch(loaders[mode]))
    finally:
        for loader in loaders.values():
            getattr(loader, "close", lambda: None)()
    return statistics.median(found["none"]), {
        mode: ratio(found, "none", mode) - 1 for mode in MODES[1:]
    }


CALLS = {"off": 0.3, "on": 1.0, "on, noted": 100.0}  # microseconds; 1 % of 10 ms is 100


def calls(repeats: int) -> None:
    """Measure what a loader calls for a batch: off, on, and for the one that is noted in 10 ms."""
    for name, most in CALLS.items():
        recorder, noted = Recorder(on=name != "off"), name.endswith("noted")

        def batch(recorder: Recorder = recorder, noted: bool = noted) -> None:
            if noted:
                recorder._next_probe = 0.0
            if recorder.request():
                with recorder.work(""), Probe("read", (0, 8)), Probe("collate"):
                    pass
            recorder.receive(BATCH, (0, 1))

        number = 200
        fastest = min(timeit.repeat(batch, number=number, repeat=repeats)) / number
        claim(f"microseconds of the calls for a batch, {name}", fastest * 1e6, at_most=most)


def main() -> None:
    options = arguments(__doc__, rounds=41, batches=40)
    calls(2 if options.tiny else 200)
    rounds, batches = (1, 4) if options.tiny else (options.rounds, options.batches)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in makers(Path(folder), batches * BATCH).items():
            seconds, found = shares(make, rounds)
            noise = abs(found["none again"])
            each = {f"{mode}_microseconds": found[mode] * seconds / batches * 1e6 for mode in MOST}
            emit(case=name, batch_microseconds=seconds / batches * 1e6, noise=noise, **each)
            for mode, most in MOST.items():
                text = f"{name}, probes {mode}: share of an epoch"
                claim(text, found[mode], at_most=most + noise)
    emit(load_average=os.getloadavg()[0])


if __name__ == "__main__":
    sys.exit(run(main, __file__))
