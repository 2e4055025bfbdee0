"""Does a chunked, resumable loader cost anything beside torch's own, and where does it save?

Control: torch's ``DataLoader`` on the same data, a moment apart. Ceiling for tensors in memory: one
``index_select`` a batch, in an order that is already there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch
from measure import arguments, claim, emit, interleaved, ratio, report, run
from torch.utils.data import DataLoader, Dataset, TensorDataset

from penstock import ChunkedDataLoader

BATCH = 256


class Plain(Dataset[Any]):
    """A Python dataset with no batched read: some work for every sample."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.rows = np.random.default_rng(0).standard_normal((1024, 64), dtype=np.float32)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        row = self.rows[index % 1024]
        return torch.from_numpy((row - row.mean()) / row.std()), index


def drain(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


def epoch_of(loader: ChunkedDataLoader) -> None:
    """One epoch, chunk by chunk."""
    for _ in range(loader.total_chunks):
        drain(loader)


def in_memory(samples: int, rounds: int) -> None:
    """Tensors in memory: 64 floats a sample."""
    data = torch.randn(samples, 64)
    tensors = TensorDataset(data, torch.arange(samples))
    order = torch.randperm(samples)
    chunked = ChunkedDataLoader(tensors, BATCH, chunk_size=100)
    cases = {
        "torch": partial(drain, DataLoader(tensors, BATCH, shuffle=True)),
        "chunked": partial(epoch_of, chunked),
        "unchunked": partial(drain, ChunkedDataLoader(tensors, BATCH, shuffle=True)),
        "one tensor, torch": partial(drain, DataLoader(data, BATCH, shuffle=True)),
        "one tensor, chunked": partial(epoch_of, ChunkedDataLoader(data, BATCH, 100)),
    }
    cases["ceiling"] = lambda: drain(data.index_select(0, at) for at in order.split(BATCH))
    seconds = interleaved(cases, rounds=rounds)
    report(seconds, about="in memory", samples=samples, batch=BATCH)
    for ours, theirs in (
        ("chunked", "torch"),
        ("unchunked", "torch"),
        ("one tensor, chunked", "one tensor, torch"),
    ):
        faster = ratio(seconds, ours, theirs)
        claim(f"in memory: {ours}, times as fast as torch", faster, at_least=5.0)


def plain_python(samples: int, rounds: int, workers: int) -> None:
    """A plain Python dataset: ours reads it as torch does, and must not be slower."""
    data = Plain(samples)
    options: dict[str, Any] = {"num_workers": workers} if workers else {}
    with ExitStack() as stack:
        chunked = stack.enter_context(ChunkedDataLoader(data, BATCH, 20, **options))
        unchunked = stack.enter_context(ChunkedDataLoader(data, BATCH, shuffle=True, **options))
        theirs = DataLoader(data, BATCH, shuffle=True, persistent_workers=workers > 0, **options)
        drain(chunked), drain(unchunked), drain(theirs)  # all workers are there
        chunked.seek(1)
        cases: dict[str, Callable[[], None]] = {
            "torch": partial(drain, theirs),
            "chunked": partial(epoch_of, chunked),
            "unchunked": partial(drain, unchunked),
        }
        cpu: dict[str, list[float]] = {case: [] for case in cases}
        cases = {case: partial(counting, work, cpu[case]) for case, work in cases.items()}
        seconds = interleaved(cases, rounds=rounds, warmup=0)
        del theirs, cases
    report(seconds, about="plain python", workers=workers, samples=samples, batch=BATCH)
    for case in ("chunked", "unchunked"):
        text = f"plain python, {workers} workers: {case}, times as fast as torch"
        claim(text, ratio(seconds, case, "torch"), at_least=0.95)
        emit(about=f"{text}, by processor time", found=ratio(cpu, case, "torch"))


def counting(work: Callable[[], None], spent: list[float]) -> None:
    """Note the processors' seconds too, to tell a loaded machine from a slower loader.

    The claim stays with the clock: workers that wait for each other spend no processor time.
    """
    before = processor_seconds()
    work()
    spent.append(processor_seconds() - before)


def processor_seconds() -> float:
    """What this process and its workers have spent."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children())]
    return sum(each.user + each.system for each in times)


def resume(samples: int, rounds: int) -> None:
    """Time to the first batch: a fresh start, and at nine tenths of the epoch."""
    data = Plain(samples)
    state = ChunkedDataLoader(data, BATCH, 1000).state_dict()
    state |= {"epoch": 2, "position": samples * 9 // 10 // BATCH * BATCH}

    def first(saved: dict[str, Any] | None) -> None:
        for _ in range(20):  # a first batch takes little: many of them, so that it can be timed
            loader = ChunkedDataLoader(data, BATCH, 1000)
            if saved is not None:
                loader.load_state_dict(saved)
            next(iter(loader))

    cases = {"fresh": partial(first, None), "resumed": partial(first, state)}
    seconds = interleaved(cases, rounds=rounds)
    report(seconds, about="20 first batches", samples=samples, batch=BATCH)
    later = ratio(seconds, "fresh", "resumed")  # how many times as long the resumed one took
    claim("resume at 90 %, time to first batch over a fresh start's", later, at_most=1.1)


def main() -> None:
    options = arguments(__doc__, rounds=11)
    rounds, samples = (1, 2_000) if options.tiny else (options.rounds, 100_000)
    in_memory(samples, rounds)
    plain_python(samples // 4, rounds, workers=0)
    plain_python(samples, rounds, workers=2)
    resume(10**8, rounds)


if __name__ == "__main__":
    sys.exit(run(main, __file__))
