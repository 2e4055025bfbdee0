"""What does training in chunks cost, against standard training of the same data and model?

Through Lightning, per training batch. Chunked: ``ChunkedTraining`` with chunk sizes, validating
after every chunk; standard: Lightning alone on the same loader settings, validating as often, by
``val_check_interval``. The dataset gives one sample at a time, so that both read alike: a gather of
whole batches, which our loader does where it can, would hide what chunks cost. And without sizes:
the callback there, or not. A step is a small model and a device that is busy for 4 ms. Cases take
turns; with a worker of torch's, or none. Then memory: the most that a chunked and a standard run
held, and what a long run holds after 10 and after 200 chunks, each in a process of its own. At last
the wait for a chunk's first batch beside that for any other.

    python benchmarks/bench_chunked_training.py [--tiny] [--rounds 9] [--batches 600] [--workers 1]
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import psutil
import torch
from measure import arguments, claim, emit, in_new_process, interleaved, ratio, report, run
from torch.utils.data import DataLoader, Dataset

from penstock.integrations.lightning import ChunkedTraining

BATCH, FEATURES, VAL_BATCHES, CHUNKS = 32, 256, 4, 6
DEVICE_SECONDS = 0.004  # of every step, as on an accelerator: the processor's own speed varies more
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Perceptron(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Linear(FEATURES, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)]
        self.layers = torch.nn.Sequential(*layers)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(DEVICE_SECONDS)
        return self.layers(batch[0]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.layers(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Clock(pl.Callback):
    """Seconds from the first training batch to the last, validations too; memory on the way."""

    def __init__(self) -> None:
        self.begin = self.end = 0.0
        self.held: list[int] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.begin = self.begin or time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        self.end = time.perf_counter()

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        if not trainer.sanity_checking:
            self.held.append(psutil.Process().memory_info().rss)


class Rows(Dataset[Any]):
    """Samples one at a time; each may take a moment, as decoding does, and lets others compute."""

    def __init__(self, count: int, sample_seconds: float = 0.0) -> None:
        self.rows, self.sample_seconds = torch.randn(count, FEATURES), sample_seconds

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        if self.sample_seconds:
            time.sleep(self.sample_seconds)
        return (self.rows[index],)


def loaders(batches: int, workers: int, sample_seconds: float = 0.0) -> list[DataLoader[Any]]:
    data = [Rows(n * BATCH, sample_seconds) for n in (batches, VAL_BATCHES)]
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    return [
        DataLoader(dataset, batch_size=BATCH, shuffle=not at, **options)
        for at, dataset in enumerate(data)
    ]


def fit(
    data: list[DataLoader[Any]], callback: Any, *, epochs: int = 1, interval: int | None = None
) -> Clock:
    clock = Clock()
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[each for each in (callback, clock) if each is not None],
        max_epochs=epochs,
        val_check_interval=interval or 1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Perceptron(), *data)
    return clock


def seconds(data: list[DataLoader[Any]], make: Any, **options: Any) -> float:
    clock = fit(data, make() if make else None, **options)
    return clock.end - clock.begin


def cases(batches: int, workers: int) -> dict[str, Any]:
    """Every one trains on ``batches`` batches and validates ``CHUNKS`` times, or once."""
    data, chunk = loaders(batches, workers), batches // CHUNKS
    sized = partial(ChunkedTraining, chunk, VAL_BATCHES)
    return {
        "chunked": partial(seconds, data, sized, epochs=CHUNKS),
        "standard": partial(seconds, data, None, interval=chunk),
        "no sizes": partial(seconds, data, ChunkedTraining),
        "no callback": partial(seconds, data, None),
    }


# -- memory: each in a process of its own


def peak_of(make: Any, batches: int) -> tuple[int, int]:
    """Most that this process held, and how much of it training added to data and libraries.

    Not ``ru_maxrss``: a process inherits that of the one that started it.
    """
    torch.set_num_threads(1)
    options = {"epochs": CHUNKS} if make else {"interval": batches // CHUNKS}
    data, before = loaders(batches, 0), psutil.Process().memory_info().rss
    fit(data, make() if make else None, **options)
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    return peak, peak - before


def held_over(chunks: int, batches: int) -> tuple[int, int]:
    torch.set_num_threads(1)
    clock = fit(
        loaders(batches, 0), ChunkedTraining(max(1, batches // 8), VAL_BATCHES), epochs=chunks
    )
    return clock.held[min(9, chunks - 1)], clock.held[-1]


def main() -> None:
    warnings.filterwarnings("ignore")  # Lightning's advice
    torch.set_num_threads(1)  # a core is left to who reads
    options = arguments(__doc__, rounds=9, batches=600, workers=1, chunks=200)
    rounds, batches = (1, 24) if options.tiny else (options.rounds, options.batches)
    for workers in (0,) if options.tiny else (0, options.workers):
        taken = interleaved(cases(batches, workers), rounds=rounds)
        report(taken, workers=workers, batches=batches)
        per_batch = {name: statistics.median(each) / batches for name, each in taken.items()}
        emit(workers=workers, microseconds={k: round(v * 1e6) for k, v in per_batch.items()})
        added = statistics.median(
            a - b for a, b in zip(taken["chunked"], taken["standard"], strict=True)
        )
        emit(workers=workers, added_microseconds_a_batch=round(added / batches * 1e6, 1))
        name = f"{workers} workers"
        claim(f"{name}: chunked / standard", 1 / ratio(taken, "chunked", "standard"), at_most=1.02)
        alone = 1 / ratio(taken, "no sizes", "no callback")
        claim(f"{name}: callback without sizes / none", alone, at_most=1.02)
    memory(options, batches)
    ends_of_chunks(options, batches)
    emit(load_average=os.getloadavg()[0])


def memory(options: Any, batches: int) -> None:
    make = partial(ChunkedTraining, batches // CHUNKS, VAL_BATCHES)
    (chunked, added), (standard, added_there) = (
        in_new_process(peak_of, each, batches) for each in (make, None)
    )
    emit(peak_bytes_chunked=chunked, added_bytes_chunked=added)
    emit(peak_bytes_standard=standard, added_bytes_standard=added_there)
    claim("peak memory, chunked / standard", chunked / standard, at_most=1.02)
    tenth, last = in_new_process(
        held_over, 12 if options.tiny else options.chunks, min(batches, 80)
    )
    emit(bytes_after_10_chunks=tenth, bytes_after_all_chunks=last)
    claim("memory after all chunks / after 10", last / tenth, at_most=1.01)


def ends_of_chunks(options: Any, batches: int) -> None:
    """Samples of 0.2 ms each: what a chunk's first batch is waited for, beside any other."""
    chunk = max(2, batches // 10)
    for workers in (0,) if options.tiny else (0, options.workers):
        callback = ChunkedTraining(chunk, VAL_BATCHES)
        fit(loaders(batches, workers, 0.0002), callback, epochs=10)
        found = callback.summary()
        emit(
            workers=workers,
            chunk_start_seconds=found.chunk_start_seconds,
            other_batch_seconds=found.batch_seconds,
        )


if __name__ == "__main__":
    sys.exit(run(main, __file__))
