"""What does an order over a trillion samples cost, and how fast are its indices?

Control: ``torch.randperm``, which keeps 8 bytes a sample. Ceiling: a copy of as many indices.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch
from measure import arguments, claim, emit, interleaved, peak_bytes, ratio, report, run

from penstock.order import BlockOrder, Cursor, Order, Permutation, Plan, ShuffledOrder, Steps
from penstock.order.permutation import permutation

TRILLION = 10**12


def make(kind: str, size: int) -> Order:
    permutation.cache_clear()  # a new order knows nothing of the one before
    if kind == "block":
        return BlockOrder(size, seed=7, block=4096, window=64, lanes=16)
    return ShuffledOrder(size, seed=7)


def seek(kind: str, size: int) -> None:
    """Build an order and its plan, go to the middle, and take the batch there."""
    order = make(kind, size)
    plan = Plan(order, Steps(size, batch=256, world=8, lanes=order.lanes), rank=3)
    step = plan.steps.count // 2
    plan.samples(Cursor(3, plan.steps.start(step)))


def build_and_seek(kind: str, size: int) -> None:
    """Build an order, and go to its middle."""
    order = make(kind, size)
    order.at(3, np.array([size // 2]))


def main() -> None:
    options = arguments(__doc__, rounds=15, indices=10**7)
    rounds, indices = (1, 10**4) if options.tiny else (options.rounds, options.indices)
    the_cost_of_a_trillion(10 * rounds)
    the_speed_of_indices(rounds, indices)


def the_cost_of_a_trillion(rounds: int) -> None:
    sizes = {"trillion": TRILLION, "million": 10**6}
    sought = {
        f"{what} {kind} {name}": partial(work, kind, size)
        for what, work in (("seek", build_and_seek), ("batch of 256 at the middle", seek))
        for kind in ("shuffled", "block")
        for name, size in sizes.items()
    }
    seconds = interleaved(sought, rounds=rounds)
    report(seconds)
    memory = {case: peak_bytes(work) for case, work in sought.items()}
    emit(case="peak memory", **{case.replace(" ", "_") + "_bytes": b for case, b in memory.items()})
    for kind in ("shuffled", "block"):
        at = float(np.median(seconds[f"seek {kind} trillion"])) * 1000
        claim(f"{kind}: built and sought to the middle of 10^12, ms", at, at_most=1.0)
        growth = memory[f"seek {kind} trillion"] / memory[f"seek {kind} million"]
        claim(f"{kind}: memory at 10^12 over memory at 10^6", growth, at_most=1.5)


def the_speed_of_indices(rounds: int, indices: int) -> None:
    places = np.arange(indices)
    out = np.empty_like(places)
    worst = (1 << (indices - 1).bit_length() - 1) + 1  # the most cycle walking there is
    shuffle = Permutation(indices, key=5)
    block = BlockOrder(indices, seed=7, block=1024, window=64)
    walk = Plan(ShuffledOrder(indices, 7), Steps(indices, batch=256))
    cases = {
        "torch.randperm": partial(torch.randperm, indices),
        "copy": partial(np.copyto, out, places),
        "permutation": partial(shuffle, places),
        "permutation of 10^12": partial(Permutation(TRILLION, key=5), places),
        "permutation of 2^k + 1": partial(Permutation(worst, key=5), places[:worst]),
        "inverse": partial(shuffle.inverse, places),
        "block order": partial(block.at, 3, places),
        "batches of 256": lambda: sum(1 for _ in walk.walk(Cursor(), walk.steps.count)),
    }
    seconds = interleaved(cases, rounds=rounds)
    report(seconds, indices=indices)
    seconds["permutation of 2^k + 1"] = [
        taken * indices / worst for taken in seconds["permutation of 2^k + 1"]
    ]
    for case in cases:
        emit(case=case, times_as_fast_as_randperm=ratio(seconds, case, "torch.randperm"))
    fast = ratio(seconds, "permutation", "torch.randperm")
    claim("vectorised indices, as fast as torch.randperm times", fast, at_least=0.5)


if __name__ == "__main__":
    sys.exit(run(main, __file__))
