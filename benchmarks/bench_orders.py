"""What does it cost to plan a batch of a mixture, of weighted samples, or of similar lengths?

Control: a plain shuffle. Ceiling: 2 % of a training step of 5 ms, which is 100 us for each batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time

import numpy as np
import torch
import zarr
from measure import arguments, claim, emit, interleaved, ratio, report, run

from penstock import ChunkedDataLoader, Mixture, StreamLoader
from penstock.order import Cursor, Order, Plan, ShuffledOrder, Steps
from penstock.order.length_batches import LengthBatches
from penstock.order.mixture import MixtureOrder, shortest_counts
from penstock.order.weighted import WeightedOrder

BATCH, STEP_SECONDS, SHARE = 256, 5e-3, 0.02
SHARES = [0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.03, 0.02, 0.01]


def main() -> None:
    options = arguments(__doc__, rounds=7, samples=10**7)
    rounds, samples = (1, 10**4) if options.tiny else (options.rounds, options.samples)
    planning(rounds, samples)
    resuming(rounds, samples if options.tiny else 10**9)
    with TemporaryDirectory() as folder:
        from_storage(rounds, Path(folder), 2000 if options.tiny else 40_000)


def planning(rounds: int, samples: int) -> None:
    rng = np.random.default_rng(0)
    members = [ShuffledOrder(max(1, int(samples * s)), i) for i, s in enumerate(SHARES)]
    lengths = np.clip(np.rint(rng.lognormal(5.6, 0.9, samples)), 1, 8192).astype(np.int32)
    counts = shortest_counts(SHARES)
    by_length = LengthBatches(ShuffledOrder(samples, 7), lengths, 131_072, budget=131_072)
    orders: dict[str, Order] = {
        "shuffle": ShuffledOrder(samples, 7),
        "mixture of 10": MixtureOrder(members, [(0, counts)], 7),
        "weights": WeightedOrder(rng.gamma(0.5, size=samples), samples, 7),
        "length batches": by_length,
    }
    begun = thread_time()
    batches = int(by_length.first_batches(3)[-1])
    counting = (thread_time() - begun) / batches  # once an epoch
    emit(case="cycle", rows=sum(counts), batches_by_length=batches, counting_us=counting * 1e6)
    steps = min(2000, samples // BATCH // 2)
    seconds: dict[str, list[float]] = {name: [] for name in orders}
    for _ in range(rounds + 1):
        for name, order in orders.items():
            # of this thread: planning waits for nothing, and other programs are not its cost
            begun = thread_time()
            plan_batches(order, steps)
            seconds[name].append(thread_time() - begun)
    report({name: taken[1:] for name, taken in seconds.items()}, clock="thread")
    for name, taken in seconds.items():
        each = float(np.median(taken[1:])) / steps + (counting if name == "length batches" else 0)
        claim(f"{name}: us to plan a batch", each * 1e6, at_most=STEP_SECONDS * SHARE * 1e6)


def plan_batches(order: Order, steps: int) -> None:
    """Plan batches from the middle of an epoch on."""
    make: Callable[..., Steps] = getattr(order, "make_steps", Steps)
    plan = Plan(order, make(order.size, BATCH, 1, order.lanes))
    half = plan.steps.of(3)
    cursor = Cursor(3, half.start(half.count // 3))
    for _ in islice(plan.walk(cursor, steps), steps):
        pass


class Numbers(torch.utils.data.Dataset[int]):
    """A dataset of any size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def resuming(rounds: int, samples: int) -> None:
    """Load a state from the middle of an epoch, and take the batch there."""
    mixture = {str(i): Numbers(max(1, int(samples * s))) for i, s in enumerate(SHARES)}
    datasets = {
        "shuffle": partial(Numbers, samples),
        "mixture of 10": partial(Mixture, mixture, SHARES),
    }
    cases = {}
    for name, make in datasets.items():
        loader = ChunkedDataLoader(make(), BATCH, shuffle=True)
        loader.seek(3, len(loader) // 2)
        cases[name] = partial(resume, make, loader.state_dict())
    seconds = interleaved(cases, rounds=3 * rounds)
    report(seconds)
    for name, taken in seconds.items():
        at = float(np.median(taken)) * 1000
        claim(f"{name}: ms to resume in the middle of {samples:,} samples", at, at_most=50)


def from_storage(rounds: int, folder: Path, rows: int) -> None:
    """Read a mixture in blocks, and its members one after the other."""
    shares = {"a": 6, "b": 3, "c": 1}
    paths = {name: folder / f"{name}.zarr" for name in shares}
    for name, share in shares.items():
        data = np.random.default_rng(0).integers(0, 50, (rows * share // 10, 1024), np.int32)
        zarr.create_array(str(paths[name]), data=data, chunks=(100, 1024))

    def read(sources: list[object]) -> None:
        for source in sources:
            with StreamLoader(source, 100, memory_budget="64MB") as loader:
                for _ in loader:
                    pass

    cases = {
        "members alone": partial(read, [*map(str, paths.values())]),
        "mixture": partial(read, [Mixture({n: str(p) for n, p in paths.items()}, shares)]),
    }
    # short ones, taken in turns: a slow moment of the machine must not meet one of them alone
    seconds = interleaved(cases, rounds=4 * rounds)
    report(seconds, rows=rows)
    speed = ratio(seconds, "mixture", "members alone")
    claim("a mixture from storage, as fast as its members times", speed, at_least=0.9)


def resume(make: Callable[[], object], state: dict[str, object]) -> None:
    loader = ChunkedDataLoader(make(), BATCH, shuffle=True)
    loader.load_state_dict(state)
    next(iter(loader))


if __name__ == "__main__":
    sys.exit(run(main, __file__))
