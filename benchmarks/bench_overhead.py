"""How much of a training run is spent waiting for batches?

Overhead is the time inside ``next()`` over the time of the whole run, with a step of 10 ms, in one
run; the first batch of an epoch, which starts workers, is counted apart. (Dividing the time of a
run without steps by that of a run with them, as is often done, calls overhead what workers do
*behind* the step.) The step sleeps, as for a device that computes alone, or computes here. A
typical overhead, of the median ``next()``, is given beside: on a machine that others use, a few
long waits are theirs. Control: torch's loader over the same data. Floor: batches that are there
already, so that only the loop and the clock are left.

    python benchmarks/bench_overhead.py [--tiny] [--rounds 3] [--batches 60]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from measure import arguments, claim, emit, run
from torch.utils.data import DataLoader, TensorDataset, default_collate

from penstock import DataLoaderConfig, DataLoaderFactory, TaskSpec, TextCollator
from penstock.datamodules import UniversalDataModule

STEP_SECONDS = 0.010
BATCH = 32
WEIGHTS = torch.rand(128, 128)


class Pads:
    pad_token_id = 0


@dataclass(frozen=True)
class Waits:
    """Seconds of each ``next()`` but the first, of the first, and of all but it."""

    each: list[float]
    first: float
    total: float

    @property
    def overhead(self) -> float:
        return sum(self.each) / self.total

    @property
    def typical(self) -> float:
        wait = statistics.median(self.each)
        return wait / (wait + STEP_SECONDS)


def sleep() -> None:
    time.sleep(STEP_SECONDS)  # the device computes, the CPU is free


def compute() -> None:
    end = time.perf_counter() + STEP_SECONDS
    while time.perf_counter() < end:
        torch.mm(WEIGHTS, WEIGHTS)  # lets go of the interpreter's lock, as a model does


def waits_of(batches: Iterable[Any], limit: int, step: Callable[[], None]) -> Waits:
    """What a run of ``limit`` batches waits."""
    begin = time.perf_counter()
    iterator = iter(batches)
    next(iterator)
    first, each, start = time.perf_counter() - begin, [], time.perf_counter()
    for _ in range(limit - 1):
        step()
        asked = time.perf_counter()
        next(iterator)
        each.append(time.perf_counter() - asked)
    return Waits(each, first, time.perf_counter() - start)


def tables(batches: int) -> dict[str, tuple[Any, Any]]:
    """Name -> dataset and collator."""
    samples = batches * BATCH
    lengths = torch.randint(16, 128, (samples,), generator=torch.Generator().manual_seed(0))
    text = [{"input_ids": list(range(1, n + 1))} for n in lengths.tolist()]
    return {
        "tensors of 128": (TensorDataset(torch.randn(samples, 128)), None),
        "ragged text": (text, TextCollator(Pads(), task_spec=TaskSpec.lm_tiny())),
    }


def ours(data: Any, collate: Any, workers: int) -> Any:
    config = DataLoaderConfig(BATCH, num_workers=workers, prefetch_factor=2)
    return DataLoaderFactory.create_dataloader(data, config, data_collator=collate)


def threaded(data: Any, collate: Any, workers: int) -> Any:
    """Read ahead by as many threads as the others have workers; one where these have none."""
    config = DataLoaderConfig(BATCH, executor="threads", threads=max(1, workers))
    return DataLoaderFactory.create_dataloader(data, config, data_collator=collate)


def module(data: Any, collate: Any, workers: int, executor: str | None = None) -> Any:
    options = {"num_workers": workers, "executor": executor}
    built = UniversalDataModule(
        data, data_collator=collate, batch_size=BATCH, val_split=0, **options
    )
    return built.train_dataloader()


def torchs(data: Any, collate: Any, workers: int) -> Any:
    return DataLoader(
        data,
        BATCH,
        shuffle=True,
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=workers > 0,
    )


def ready(data: Any, collate: Any, workers: int) -> Any:
    return [(collate or default_collate)([data[i] for i in range(BATCH)])] * (len(data) // BATCH)


CASES: dict[str, Callable[[Any, Any, int], Any]] = {
    "create_dataloader": ours,
    "create_dataloader, threads": threaded,
    "UniversalDataModule": module,
    "UniversalDataModule, threads": partial(module, executor="threads"),
    "torch": torchs,
    "floor": ready,
}


def main() -> None:
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)  # a core is left to who reads
    options = arguments(__doc__, rounds=3, batches=60)
    rounds, batches = (1, 6) if options.tiny else (options.rounds, options.batches)
    figures: dict[tuple[str, str, int, str], list[Waits]] = {}
    for _ in range(rounds):
        steps = (sleep,) if options.tiny else (sleep, compute)
        for place in product(steps, tables(batches).items(), (0, 2, 4), CASES.items()):
            step, (name, (data, collate)), workers, (case, make) = place
            if workers == 4 and (options.tiny or step is compute):
                continue  # as many processes as would compute too: of no interest
            loader = make(data, collate, workers)
            found = figures.setdefault((step.__name__, name, workers, case), [])
            found.append(waits_of(loader, batches, step))
            getattr(loader, "close", lambda: None)()
    best: dict[str, Waits] = {}
    for (step_name, name, workers, case), runs in figures.items():
        run = sorted(runs, key=lambda each: each.overhead)[len(runs) // 2]
        about = {"step": step_name, "data": name, "workers": workers, "case": case}
        emit(**about, overhead=run.overhead, typical=run.typical, first_batch_seconds=run.first)
        if case not in ("torch", "floor"):
            best[f"{step_name}, {name}"] = min(
                best.get(f"{step_name}, {name}", run), run, key=lambda each: each.overhead
            )
    for name, run in best.items():
        claim(f"{name}: share waited, best setting", run.overhead, at_most=0.01)
        claim(f"{name}: typical share waited, best setting", run.typical, at_most=0.01)
    emit(load_average=os.getloadavg()[0])


if __name__ == "__main__":
    sys.exit(run(main, __file__))
