"""Is the tuned loader as fast as the best of a full grid, found in a tenth of the grid's time?

Four workloads: spectrograms in memory, many small .npy files (`SpectrogramFolder`), augmentation
in Python, storage that answers late; and a fifth, small files that a dataset of the user's own
reads with ``np.load``. Each is loaded with torch's defaults (the control), with every configuration
of a grid, and as `tune` says; the finalists then take turns. Besides: an epoch of training before
and after (tuned for the time of its step), the busy share of a simulated device, the steadiness of
``next()``, processor time a sample, and the table of workers and prefetching.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

import numpy as np
import torch
from measure import arguments, claim, emit, interleaved, ratio, report, run
from torch.utils.data import DataLoader, Dataset, TensorDataset

from penstock import SpectrogramFolder, sample_generator
from penstock.loaders import ChunkedDataLoader
from penstock.metrics import samples_of
from penstock.tuning import DataLoaderConfig, DataLoaderFactory, DataLoaderPerformanceMonitor, tune
from penstock.tuning.machine import this_machine

BATCH = 32
SHAPE = (1, 64, 32)  # a short log-mel spectrogram: 8 kB
GUIDES_SHAPE = (1, 224, 313)  # of five seconds: 280 kB, where copying memory is all there is


def small_files(folder: Path, samples: int) -> SpectrogramFolder:
    """One small .npy file a sample, with the table of their classes."""
    folder.mkdir()
    rows = ["filename,class_id,author"]
    for i in range(samples):
        np.save(folder / f"{i}.npy", np.full((56, 78), i, np.float32))
        rows.append(f"{i}.npy,{i % 10},nobody")
    (folder / "metadata.csv").write_text("\n".join(rows))
    return SpectrogramFolder(folder)


class OwnFiles(Dataset[Any]):
    """The same, as somebody reads them himself."""

    def __init__(self, folder: Path, samples: int) -> None:
        folder.mkdir()
        self.paths = [folder / f"{i}.npy" for i in range(samples)]
        for i, path in enumerate(self.paths):
            np.save(path, np.full((1, 56, 78), i, np.float32))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.load(self.paths[index], allow_pickle=False)), index


class Augmenting(Dataset[Any]):
    """Augmentation written in Python: it holds the interpreter's lock all along."""

    def __init__(self, samples: int) -> None:
        self.data = torch.rand(samples, 64)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        draw = int(torch.randint(7, (), generator=sample_generator(index, "augment")))
        row = self.data[index].tolist()
        for turn in range(60):
            row = [x * 0.5 + y * 0.5 for x, y in zip(row, row[1:] + row[:1], strict=True)]
            row[turn] += draw
        return torch.tensor(row), index


class LateStorage(Dataset[Any]):
    """Storage that answers after so long."""

    def __init__(self, samples: int, seconds: float) -> None:
        self.samples, self.seconds = samples, seconds

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        Event().wait(self.seconds)
        return torch.full((1, 28, 39), float(index)), index


def workloads(folder: Path, samples: int, late_seconds: float) -> dict[str, Dataset[Any]]:
    memory = TensorDataset(torch.rand(samples, *SHAPE), torch.arange(samples))
    return {
        "in memory": memory,
        "small files": small_files(folder / "table", samples),
        "python augmentation": Augmenting(samples),
        "late storage": LateStorage(samples, late_seconds),
        "small files with np.load": OwnFiles(folder / "own", samples),
    }


def grid(*, tiny: bool) -> list[DataLoaderConfig]:
    """Every executor, number of readers and depth that somebody might try here."""
    base = DataLoaderConfig(BATCH, num_workers=0)
    cores = this_machine().cores
    readers = [2] if tiny else sorted({1, 2, cores, 4 * cores, 16})
    threads = [replace(base, executor="threads", threads=n) for n in readers if n > 1]
    processes = [
        replace(base, executor="processes", num_workers=n, prefetch_factor=ahead)
        for n, ahead in product(readers, (2,) if tiny else (2, 4))
    ]
    return [replace(base, executor="inline"), *threads, *processes]


def name_of(config: DataLoaderConfig) -> str:
    if config.executor == "inline":
        return "inline"
    ahead = f"x{config.prefetch_factor}" if config.num_workers else ""
    return f"{config.threads or config.num_workers} {config.executor}{ahead}"


@contextmanager
def running(dataset: Any, config: DataLoaderConfig | None) -> Iterator[Iterator[Any]]:
    """Batches without end, workers started and what was in flight taken; None: torch's defaults."""
    if config is None:
        loader: Any = DataLoader(dataset, BATCH, shuffle=True)
    else:
        loader = ChunkedDataLoader(dataset, **config.options())
    batches = (batch for _ in iter(int, 1) for batch in loader)
    warm = 2 if config is None else 4 * max(1, config.num_workers, config.threads or 0)
    try:
        for _ in islice(batches, min(warm, 64)):
            pass
        yield batches
    finally:
        getattr(loader, "close", lambda: None)()


def rate(batches: Iterator[Any], seconds: float) -> float:
    """Samples a second over so long."""
    begin, samples = perf_counter(), 0
    while (now := perf_counter()) - begin < seconds or not samples:
        samples += samples_of(next(batches))
    return samples / (now - begin)


@dataclass
class Found:
    grid_best: DataLoaderConfig
    grid_seconds: float
    tuned: DataLoaderConfig
    tune_seconds: float


def search(dataset: Any, name: str, seconds: float, *, tiny: bool) -> Found:
    """The best of the grid, and what tune says, with the time of both."""
    begin, rates = perf_counter(), {}
    for config in grid(tiny=tiny):
        with running(dataset, config) as batches:
            rates[config] = rate(batches, seconds)
        emit(workload=name, grid=name_of(config), samples_per_second=rates[config])
    grid_seconds = perf_counter() - begin
    begin = perf_counter()
    tuned = tune(dataset, BATCH, budget_seconds=0.08 * grid_seconds, cached=False, verbose=False)
    best = max(rates, key=lambda config: rates[config])
    return Found(best, grid_seconds, tuned, perf_counter() - begin)


def duel(dataset: Any, name: str, found: Found, rounds: int, seconds: float) -> None:
    """Torch's defaults, the best of the grid and the tuned loader take turns, each alone."""
    configs = {"torch": None, "best of grid": found.grid_best, "tuned": found.tuned}
    taken = interleaved(
        {case: seconds_per_sample(dataset, config, seconds) for case, config in configs.items()},
        rounds=rounds,
    )
    report(taken, workload=name, tuned=name_of(found.tuned), grid_best=name_of(found.grid_best))
    claim(
        f"{name}: speed of tuned against the best of the grid",
        ratio(taken, "tuned", "best of grid"),
        at_least=0.95,
    )
    claim(
        f"{name}: speed of tuned against torch's defaults",
        ratio(taken, "tuned", "torch"),
        at_least=3.0 if name == "in memory" else 1.2,
    )
    claim(
        f"{name}: time of tuning, as a share of the grid's",
        found.tune_seconds / found.grid_seconds,
        at_most=0.1,
    )


def seconds_per_sample(
    dataset: Any, config: DataLoaderConfig | None, seconds: float
) -> Callable[[], float]:
    def measure() -> float:
        with running(dataset, config) as batches:
            return 1 / rate(batches, seconds)

    return measure


def training(dataset: Any, name: str, tune_seconds: float, batches: int) -> None:
    """An epoch before and after, on a device whose step takes as long as torch's loading does."""
    monitor = DataLoaderPerformanceMonitor()
    before = DataLoader(dataset, BATCH, shuffle=True)
    step = monitor.time_batch_loading(before, batches)["p50"]
    options: dict[str, Any] = {"budget_seconds": tune_seconds, "cached": False, "verbose": False}
    tuned = tune(dataset, BATCH, step_seconds=step, **options)
    with DataLoaderFactory.create_dataloader(dataset, tuned) as after:
        cpu = monitor.time_batch_loading(after, batches)["cpu_seconds_per_sample"]
        waits = {"before": waiting(before, step, batches), "after": waiting(after, step, batches)}
    seconds = {case: sum(waits[case]) + step * len(waits[case]) for case in waits}
    p50, p95 = np.percentile(waits["after"], [50, 95])
    emit(
        workload=name,
        tuned_for_training=name_of(tuned),
        step_seconds=step,
        busy_before=step * len(waits["before"]) / seconds["before"],
        epoch_before_seconds=seconds["before"],
        epoch_after_seconds=seconds["after"],
        next_p50_seconds=float(p50),
        iteration_p95_over_p50=float((p95 + step) / (p50 + step)),
        cpu_seconds_per_sample=cpu,
    )
    saved = 1 - seconds["after"] / seconds["before"]
    claim(f"{name}: share of an epoch's time saved", saved, at_least=0.2)
    busy = step * len(waits["after"]) / seconds["after"]
    claim(f"{name}: busy share of the device", busy, at_least=0.8)
    claim(f"{name}: p95 over p50 of next()", float(p95 / p50), at_most=2.0)


def waiting(loader: Any, step: float, batches: int) -> list[float]:
    """Seconds that a device, busy for ``step`` after each batch, waits for the next one."""
    stream, device, waits = iter(loader), Event(), []
    next(stream)  # workers start
    for _ in range(batches):
        device.wait(step)
        begin = perf_counter()
        if next(stream, None) is None:
            break
        waits.append(perf_counter() - begin)
    return waits


def workers_and_prefetching(dataset: Any, name: str, batches: int) -> None:
    """The guide's table: what workers and prefetching add, and what the loader itself costs."""
    monitor = DataLoaderPerformanceMonitor()
    alone = None
    for workers, ahead in ((0, None), (2, 2), (4, 2), (4, 4)):
        config = DataLoaderConfig(BATCH, num_workers=workers, prefetch_factor=ahead)
        with ChunkedDataLoader(dataset, **config.options()) as loader:
            figures = monitor.time_batch_loading(loader, batches)
        alone = alone or figures["samples_per_second"]
        emit(
            workload=name,
            workers=workers,
            prefetch=ahead,
            pin=config.options()["pin_memory"],
            samples_per_second=figures["samples_per_second"],
            gain_percent=100 * (figures["samples_per_second"] / alone - 1),
            cpu_seconds_per_sample=figures["cpu_seconds_per_sample"],
        )


def against_the_copy(samples: int, rounds: int) -> None:
    """Of large samples in memory nothing but copying is left: how near is each to one copy?"""
    data = torch.rand(samples, *GUIDES_SHAPE)
    batch, into = data[:BATCH].clone(), torch.empty(BATCH, *GUIDES_SHAPE)
    inline = DataLoaderConfig(BATCH, num_workers=0, executor="inline")

    def copy() -> float:
        begin = perf_counter()
        for _ in range(8):
            into.copy_(batch)
        return (perf_counter() - begin) / 8 / BATCH

    cases = {
        "copy": copy,
        "torch": seconds_per_sample(TensorDataset(data), None, 0.2),
        "inline": seconds_per_sample(TensorDataset(data), inline, 0.2),
        "threads": seconds_per_sample(
            TensorDataset(data), replace(inline, executor="threads"), 0.2
        ),
    }
    taken = interleaved(cases, rounds=rounds)
    report(taken, workload="in memory, 280 kB a sample")
    for case in ("inline", "threads"):
        emit(
            workload="in memory, 280 kB a sample",
            case=case,
            against_torch=ratio(taken, case, "torch"),
        )


def main() -> None:
    asked = arguments(__doc__, samples=2048, rounds=5, batches=32, milliseconds=700)
    if asked.tiny:
        asked.samples, asked.rounds, asked.batches, asked.milliseconds = 64, 1, 2, 5
    warnings.filterwarnings("ignore", "This DataLoader will create")
    with tempfile.TemporaryDirectory() as folder:
        late = 0.0002 if asked.tiny else 0.005
        chosen = workloads(Path(folder), asked.samples, late).items()
        for name, dataset in islice(chosen, 1) if asked.tiny else chosen:
            found = search(dataset, name, asked.milliseconds / 1000, tiny=asked.tiny)
            duel(dataset, name, found, asked.rounds, asked.milliseconds / 1000)
            training(dataset, name, found.tune_seconds, asked.batches)
            workers_and_prefetching(dataset, name, asked.batches)
    against_the_copy(64 if asked.tiny else 256, asked.rounds)


if __name__ == "__main__":
    sys.exit(run(main, __file__))
