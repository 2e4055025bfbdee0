"""How long do cases take when background load affects all of them alike?

Cases are interleaved in one process, round by round, so that their *ratios* can be trusted on a
shared machine. The output is one JSON line per case, with median and quartiles, and one per claim.
A claim has a bound; a benchmark with a claim that does not hold exits with 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import os
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


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
    """Return the seconds of every case in every round; each round runs all cases.

    The first case differs from round to round. A case is a function that does the work once. It
    may return the seconds itself (a float), if part of what it does should not count. A tiny run
    has no warm-up.
    """
    warmup = 0 if _run.options.get("tiny") else warmup
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
    if not _run.options.get("tiny"):  # takes longer than most tiny cases
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


def in_new_process(work: Callable[..., Any], *args: Any) -> Any:
    """What ``work`` returns in a process of its own; a tiny run calls it in this one."""
    if _run.options.get("tiny"):
        return work(*args)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *args).result()


# -- claims


def claim(
    text: str, found: float, *, at_least: float | None = None, at_most: float | None = None
) -> None:
    """Compare a figure with its bound; one that does not hold makes the benchmark fail.

    A figure without a bound is no claim: `emit` it.
    """
    bounds = {"at_least": at_least, "at_most": at_most}
    bounds = {name: bound for name, bound in bounds.items() if bound is not None}
    if not bounds or not all(map(math.isfinite, bounds.values())):
        raise TypeError(f"the claim {text!r} has no bound: give at_least= or at_most=")
    holds = bounds.get("at_least", found) <= found <= bounds.get("at_most", found)
    emit(claim=text, found=found, **bounds, holds=bool(holds))  # NaN holds nowhere


def claim_not_made(text: str, why: str) -> None:
    """A claim that could not be measured; it counts as one that does not hold."""
    emit(claim=text, not_measured=why, holds=False)


def emit(**fields: Any) -> None:
    """One JSON line; floats with four significant digits."""
    short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in fields.items()}
    _run.lines.append(short)
    print(json.dumps(short), flush=True)


# -- a run


@dataclass
class _Run:
    """The benchmark that runs in this process."""

    options: dict[str, Any] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)


_run = _Run()


def arguments(question: str | None, **defaults: Any) -> argparse.Namespace:
    """``--tiny`` (a smoke test: no figure means anything), and an option for each default."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--tiny", action="store_true", help="run small and short: a smoke test")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are written")
    for name, value in defaults.items():
        kind = str if value is None else type(value)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=value)
    found = parser.parse_args()
    _run.options = vars(found)
    return found


def run(main: Callable[[], None], file: str) -> int:
    """Run a benchmark: the exit code is 1 if a claim does not hold.

    All lines are written to ``results/<name>.json`` with the date and the machine. A tiny run
    writes nothing and fails only if it raises.
    """
    global _run
    _run, name = _Run(), Path(file).stem
    emit(benchmark=name, date=datetime.now(UTC).isoformat(timespec="seconds"), **machine())
    main()
    options, lines = _run.options, _run.lines
    failed = [line["claim"] for line in lines if line.get("holds") is False]
    emit(benchmark=name, claims=sum("claim" in line for line in lines), failed=failed)
    if options.get("tiny"):
        return 0
    folder = options.get("results", RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in options.items() if key not in ("tiny", "results")}
    found = {**lines[0], "options": settings, "failed": failed, "lines": lines[1:-1]}
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1, default=str) + "\n")
    return int(bool(failed))


def machine() -> dict[str, Any]:
    """What the figures were measured on; no name that tells whose it is."""
    versions = {name: version(name) for name in ("torch", "numpy", "zarr", "penstock")}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(pages / 1e9, 1),
            "accelerator": str(torch.accelerator.current_accelerator() or "none"),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            **versions,
        },
        "load_average": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line)
    return next(names, platform.processor())
