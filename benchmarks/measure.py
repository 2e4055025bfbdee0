"""How long do cases take when a slow minute hurts all of them alike?

Cases take turns in one process, round by round, so that their *ratios* can be trusted on a
machine that others use too. What comes out is one JSON line per case: median and quartiles.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Measured:
    """Seconds of one case over all rounds."""

    case: str
    rounds: int
    median_seconds: float
    lower_quartile_seconds: float
    upper_quartile_seconds: float
    fastest_seconds: float

    @classmethod
    def of(cls, case: str, seconds: list[float]) -> Measured:
        cuts = (
            statistics.quantiles(seconds, n=4, method="inclusive")
            if len(seconds) > 1
            else seconds * 3
        )
        return cls(case, len(seconds), cuts[1], cuts[0], cuts[2], min(seconds))


def interleaved(
    cases: Mapping[str, Callable[[], Any]], *, rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of every case in every round; each round runs all cases, in turning order.

    A case is a function that does the work once. It may return the seconds itself (a float),
    where part of what it does should not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for turn in range(-warmup, rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            taken = timed(cases[name])
            if turn >= 0:
                seconds[name].append(taken)
    return seconds


def timed(work: Callable[[], Any]) -> float:
    """Seconds of one call, the garbage of the one before not counted."""
    gc.collect()
    begin = time.perf_counter()
    said = work()
    taken = time.perf_counter() - begin
    return said if isinstance(said, float) else taken


def ratio(seconds: Mapping[str, list[float]], case: str, control: str) -> float:
    """How many times faster ``case`` is than ``control``: the median over the rounds.

    Both ran in the same round, a moment apart, so a loaded machine slows both.
    """
    pairs = zip(seconds[control], seconds[case], strict=True)
    # a clock that ticks may see nothing of a tiny case: two nothings are equal
    return statistics.median((theirs + 1e-9) / (ours + 1e-9) for theirs, ours in pairs)


def peak_bytes(work: Callable[[], Any]) -> int:
    """Most memory that Python and numpy held for ``work`` at once."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def report(seconds: Mapping[str, list[float]], **about: Any) -> None:
    """One JSON line per case."""
    for case, taken in seconds.items():
        emit(**asdict(Measured.of(case, taken)), **about)


def verdict(
    claim: str, found: float, *, at_least: float | None = None, at_most: float | None = None
) -> bool:
    """One JSON line that says whether a claim holds, with the figure."""
    holds = (at_least is None or found >= at_least) and (at_most is None or found <= at_most)
    bounds = {"at_least": at_least, "at_most": at_most}
    emit(
        claim=claim, found=found, **{k: v for k, v in bounds.items() if v is not None}, holds=holds
    )
    return holds


def emit(**fields: Any) -> None:
    """One JSON line; floats with four significant digits."""
    short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in fields.items()}
    print(json.dumps(short), flush=True)


def arguments(question: str | None, **defaults: int) -> argparse.Namespace:
    """``--tiny`` (a smoke test for CI: no figure means anything), ``--rounds``, and sizes."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--tiny", action="store_true", help="run small and short: a smoke test")
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser.parse_args()
