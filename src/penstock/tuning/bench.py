"""`penstock bench`: a stream against the fastest way to read its storage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from penstock.arguments import format_bytes, size_text
from penstock.loaders.stream import StreamLoader
from penstock.sources import Source
from penstock.sources.ragged_rows import new_buffers
from penstock.tuning.doctor import memory, shuffling, storage_layout
from penstock.tuning.examination import Examination, Subject, stream_of
from penstock.tuning.monitor import DataLoaderPerformanceMonitor
from penstock.tuning.trials import CLOSE

MIN_BATCHES, MAX_BATCHES = 5, 10_000  # in one measurement
GOOD_SHARE = 0.5  # of the ceiling: a stream that reaches it gets no advice
BUDGET_SHARES = (1, 4)  # memory budgets to try, as multiples of the configured one


@dataclass(frozen=True, slots=True)
class StreamSpeed:
    """How fast a stream is, and how fast its storage can be read at all.

    Args:
        samples: Number of samples of the source.
        sample_bytes: Mean size of a sample.
        ceiling: Bytes per second of threads that read whole blocks at random, and nothing else.
        stream: Bytes per second of shuffled batches.
        samples_per_second: Samples per second of shuffled batches.
        first_batch_seconds: Time until the first batch.
        threads: Number of reader threads, the same for both measurements.
        block_samples: Samples that are read together.
        batch_size: Samples of a batch.
        buffer_bytes: Memory of all buffers.
        advice: What to change, one sentence per item.
    """

    samples: int
    sample_bytes: float
    ceiling: float
    stream: float
    samples_per_second: float
    first_batch_seconds: float
    threads: int
    block_samples: int
    batch_size: int
    buffer_bytes: int
    advice: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The stream as a share of the ceiling."""
        return self.stream / self.ceiling if self.ceiling else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {**asdict(self), "share": self.share}

    def text(self) -> str:
        """Return a few lines for the user."""
        size = format_bytes(round(self.samples * self.sample_bytes))
        each = format_bytes(round(self.sample_bytes))
        ceiling, stream = (f"{format_bytes(round(n))}/s" for n in (self.ceiling, self.stream))
        return "\n".join(
            [
                f"{self.samples:,} samples of {each}, {size}",
                f"  ceiling      {ceiling:>12}  {self.threads} threads read whole blocks of "
                f"{self.block_samples:,} samples at random, and nothing else",
                f"  stream       {stream:>12}  {self.share:.0%} of it: "
                f"{self.samples_per_second:,.0f} samples/s in shuffled batches of "
                f"{self.batch_size:,}",
                f"  first batch  {self.first_batch_seconds * 1e3:>9,.1f} ms",
                f"  memory       {format_bytes(self.buffer_bytes):>12}  of buffers",
                *(f"advice: {text}" for text in self.advice),
            ]
        )


def measure_stream(
    source: Source, batch_size: int, *, seconds: float = 3.0, **options: Any
) -> StreamSpeed:
    """Return the speed of a stream and of its storage, measured alternately.

    Args:
        source: What is read.
        batch_size: Samples of a batch; all samples if there are fewer.
        seconds: How long to measure, about.
        **options: Arguments of `StreamLoader`.
    """
    batch_size = min(batch_size, len(source))
    with StreamLoader(source, batch_size, **options) as loader:
        monitor = DataLoaderPerformanceMonitor()
        first = monitor.time_batch_loading(loader, MIN_BATCHES)
        batches = int(seconds / 2 / max(first["mean_batch_time"], 1e-6))
        ceilings = [read_ceiling(source, loader.threads, seconds / 4, loader.block_samples)]
        batches = min(max(batches, MIN_BATCHES), MAX_BATCHES)
        found = monitor.time_batch_loading(loader, batches)
        ceilings += [read_ceiling(source, loader.threads, seconds / 4, loader.block_samples)]
        rate = found["samples_per_second"]
        size = sum(size for _, size in ceilings) / max(1, sum(rows for rows, _ in ceilings))
        speed = StreamSpeed(
            samples=len(source),
            sample_bytes=size,
            ceiling=max(rows for rows, _ in ceilings) * size / (seconds / 4),
            stream=rate * size,
            samples_per_second=rate,
            first_batch_seconds=first["first_batch_time"],
            threads=loader.threads,
            block_samples=loader.block_samples,
            batch_size=batch_size,
            buffer_bytes=loader.buffer_bytes,
        )
        subject = Subject("", source, batch_size, loader=loader)
        examined = Examination(subject, len(source), stream=stream_of(subject, source))
    return _advised(speed, examined)


def _advised(speed: StreamSpeed, examined: Examination) -> StreamSpeed:
    found = [text for check in (storage_layout, shuffling, memory) for text in check(examined)]
    if not found and speed.share < GOOD_SHARE:
        found = [
            "the stream is slower than its storage: try larger batches or a different number "
            "of threads, and measure while no other program needs the processor"
        ]
    texts = found or ["nothing to change"]
    return StreamSpeed(**{**asdict(speed), "advice": tuple(texts)})


def read_ceiling(source: Source, threads: int, seconds: float, block: int) -> tuple[int, int]:
    """Return the samples and bytes that threads read in ``seconds``, in randomly chosen blocks.

    Args:
        source: What is read.
        threads: Number of threads.
        seconds: How long; every thread reads at least one block.
        block: Samples of a block.
    """
    block = min(block, len(source))
    blocks = max(1, len(source) // block)
    done = np.zeros((threads, 2), np.int64)
    errors: list[Exception] = []
    end = perf_counter() + seconds

    def read(number: int) -> None:
        rng = np.random.default_rng(number)
        out = new_buffers(source, source.fields, 0, block)
        ragged = any(getattr(field, "ragged", False) for field in source.fields.values())
        try:
            while not done[number, 0] or perf_counter() < end:
                start = int(rng.integers(blocks)) * block
                if ragged:
                    out = new_buffers(source, source.fields, start, start + block)
                source.read(start, start + block, out)
                done[number] += block, sum(each.nbytes for each in out.values())
        except Exception as error:  # noqa: BLE001  # raised below, in the caller's thread
            errors.append(error)

    workers = [
        threading.Thread(target=read, args=(number,), name="bench") for number in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    rows, size = done.sum(axis=0).tolist()
    return rows, size


# -- settings of a stream


def tune_stream(
    loader: StreamLoader, *, seconds: float, most_bytes: int, report: Callable[[str], object]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the best threads and memory budget for a stream, and the figures of all candidates.

    Among those close to the fastest, the one that needs least wins. Candidates are interleaved, so
    that background load affects all of them.

    Args:
        loader: A loader with the other settings.
        seconds: How long to measure, all candidates together.
        most_bytes: Limit of the memory budget.
        report: Called with a line about each run.
    """
    candidates = list(_candidates(loader, most_bytes))
    monitor, figures = DataLoaderPerformanceMonitor(), dict[str, dict[str, Any]]()
    for turn in range(2):
        for settings in candidates:
            name = _named(settings)
            report(f"round {turn + 1}/2: {name}")
            with _with(loader, settings) as variant:
                first = monitor.time_batch_loading(variant, MIN_BATCHES)
                share = seconds / 2 / len(candidates) / max(first["mean_batch_time"], 1e-6)
                batches = min(max(int(share), MIN_BATCHES), MAX_BATCHES)
                found = monitor.time_batch_loading(variant, batches)
            key = "samples_per_second"
            if name not in figures or found[key] > figures[name][key]:
                figures[name] = {**found, "settings": settings}
    fastest = max(each["samples_per_second"] for each in figures.values())
    best = next(e for e in figures.values() if e["samples_per_second"] >= CLOSE * fastest)
    return dict(best["settings"]), figures


def _candidates(loader: StreamLoader, most_bytes: int) -> Iterator[Mapping[str, Any]]:
    """Yield settings to try, those that need least first."""
    usual = loader.threads
    for share in BUDGET_SHARES:
        budget = loader.memory_budget * share
        larger = {} if share == 1 else {"memory_budget": size_text(budget)}
        if not larger or budget <= most_bytes:
            for threads in sorted({max(1, usual // 2), usual, 2 * usual}):
                yield {"threads": threads, **larger}


def _named(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _with(loader: StreamLoader, settings: Mapping[str, Any]) -> StreamLoader:
    names = ("steps", "shuffle", "seed", "drop_last", "device", "memory_budget", "transform")
    options: dict[str, Any] = {name: getattr(loader, name) for name in (*names, "collate_fn")}
    return StreamLoader(loader.source, loader.batch_size, **{**options, **settings})
