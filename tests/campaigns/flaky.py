"""Tests that depend on time, many times, on a machine whose cores are all busy.

One pytest process runs every test of several files many times, so that imports and module fixtures
are paid once. A first round runs every test once and measures it; then the files follow,
the cheapest first. A test that has used its share of time is not run again: the summary says how
many tests had fewer runs than requested.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
# ends with its parent, however that ends
BUSY = "import os; p = os.getppid()\nwhile os.getppid() == p: sum(range(100_000))"
FILES = 8  # of one pytest process, which takes several seconds to start
MARKS = "timing and not proof and not cuda"
FILE = re.compile(r"^(\S+?\.py)::", re.M)


class Repeated:
    """Runs of tests, and what became of them."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.options = options
        self.results = folder / "results.jsonl"
        self.ends = time.monotonic() + options.seconds

    def pytest(self, *args: str, times: int) -> str:
        """Run pytest with the plugin, and return its output; end if pytest itself failed."""
        environment = {
            "FLAKY_TIMES": str(times),
            "FLAKY_SECONDS": str(self.options.budget),
            "FLAKY_RESULTS": str(self.results),
        }
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("-p", "tests.campaigns.repeat", "-m", MARKS, *args),
            ],
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (0, 1, 5):  # passed, failures, nothing selected
            raise SystemExit(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def files(self) -> list[str]:
        """Return the files that have tests to repeat."""
        listed = self.pytest("--collect-only", *self.options.tests, times=1)
        return list(dict.fromkeys(FILE.findall(listed)))

    def run(self, files: list[str], times: int) -> None:
        """Run every test of some files ``times`` times, unless the time is over."""
        if files and time.monotonic() < self.ends:
            began = time.monotonic()
            wanted: list[str] = []
            for file in files:
                inside = [test for test in self.options.tests if test.startswith(f"{file}::")]
                wanted += inside or [file]
            output = self.pytest(*wanted, times=times)
            took, last = time.monotonic() - began, output.splitlines()[-1]
            print(f"{took:6.0f} s  {files[0]} ... {files[-1]}: {last}", flush=True)

    def outcomes(self) -> list[dict[str, object]]:
        """Return all runs so far."""
        if not self.results.exists():
            return []
        return [json.loads(line) for line in self.results.read_text().splitlines()]

    def cost(self) -> Counter[str]:
        """Return the seconds of each file so far."""
        seconds: Counter[str] = Counter()
        for each in self.outcomes():
            seconds[str(each["test"]).partition("::")[0]] += float(str(each["seconds"]))
        return seconds


def run(options: argparse.Namespace) -> int:
    """Run the tests again and again beside a busy loop on every core; 0 if none ever failed."""
    cores = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores)]
    try:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
            repeated = Repeated(Path(folder), options)
            files = repeated.files()
            shares = [files[job :: options.jobs] for job in range(options.jobs)]
            list(pool.map(lambda share: repeated.run(share, 1), shares))
            cost = repeated.cost()
            files.sort(key=lambda file: cost[file])
            groups = [files[at : at + FILES] for at in range(0, len(files), FILES)]
            if options.times > 1:
                list(pool.map(lambda group: repeated.run(group, options.times - 1), groups))
            return report(repeated.outcomes(), options.times)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def report(outcomes: list[dict[str, object]], times: int) -> int:
    """Print every failure and the summary; return 1 if a test failed."""
    ran = Counter(str(each["test"]) for each in outcomes)
    failures = [each for each in outcomes if each["outcome"] == "failed"]
    failed = Counter(str(each["test"]) for each in failures)
    shown: set[object] = set()
    for each in failures:
        if each["test"] not in shown:
            print(f"--- {each['test']}\n{each['why']}")
            shown.add(each["test"])
    for name, count in failed.most_common():
        print(f"{count} of {ran[name]}  {name}")
    fewer = sum(count < times for count in ran.values())
    print(
        f"{len(ran)} tests x {times} runs, {len(failures)} failures ({len(outcomes)} runs; {fewer} "
        "tests used their time in fewer runs)"
    )
    return int(bool(failures))
