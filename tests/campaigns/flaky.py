"""Tests that depend on time, many times, on a machine whose cores are all busy.

One pytest process runs the tests of several files many times, so that imports and module fixtures
are paid once. A first round runs every test once and measures it; then the files follow,
the cheapest first. Every run is a line of a file: with ``--results FILE`` that file is kept, the
runs of each test joined to one line, and another start continues with the tests that have too few
runs since they last failed. Begin a new file where the package has changed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaigns.repeat import joined, read_runs, runs_in_a_row

# ends with its parent, however that ends
BUSY = "import os; p = os.getppid()\nwhile os.getppid() == p: sum(range(100_000))"
SHARE_SECONDS = 150.0  # of the tests of one pytest process, which takes several seconds to start
MARKS = "timing and not proof and not cuda"
SUMMARY = re.compile(r"\b(passed|failed|skipped|deselected)\b")
TEST = re.compile(r"^\S+?\.py::.+$", re.M)


@dataclass(frozen=True)
class Share:
    """Files for one pytest process, and how many times it runs their tests at most."""

    files: tuple[str, ...]
    runs: int


class Repeated:
    """Runs of tests, and what became of them."""

    def __init__(self, results: Path, options: argparse.Namespace) -> None:
        self.results, self.options = results, options
        self.ends = time.time() + options.seconds
        self.broken: list[str] = []  # output of processes that ended before their tests did
        self.tests = TEST.findall(self.pytest("--collect-only", *options.tests, runs=0).stdout)

    def pytest(self, *args: str, runs: int) -> subprocess.CompletedProcess[str]:
        """Run pytest with the plugin."""
        environment = {
            "FLAKY_TIMES": str(self.options.times),
            "FLAKY_RUNS": str(runs),
            "FLAKY_RESULTS": str(self.results),
            "FLAKY_ENDS": str(self.ends),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "tests.campaigns.repeat", "-m", MARKS]
        command += ["-o", "tmp_path_retention_policy=failed"]
        command += ["-o", "faulthandler_exit_on_timeout=true"]
        return subprocess.run(
            [*command, *args],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def missing(self) -> Counter[str]:
        """Return how many runs each test still needs."""
        done = runs_in_a_row(read_runs(self.results))
        return Counter({test: max(0, self.options.times - done[test]) for test in self.tests})

    def run(self, share: Share) -> None:
        """Run the tests of a share, unless the time is over."""
        if time.time() > self.ends:
            return
        began = time.time()
        wanted: list[str] = []
        for file in share.files:
            inside = [test for test in self.options.tests if test.startswith(f"{file}::")]
            wanted += inside or [file]
        done = self.pytest(*wanted, runs=share.runs)
        last = (done.stdout.splitlines() or ["no output"])[-1]
        if not SUMMARY.search(last) and time.time() < self.ends:
            self.broken.append(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        print(f"{time.time() - began:6.0f} s  {' '.join(share.files)}: {last}", flush=True)

    def shares(self) -> list[Share]:
        """Return what is still to run, the cheapest files first, in parts of similar length."""
        outcomes, missing = read_runs(self.results), self.missing()
        seconds: Counter[str] = Counter()
        for each in outcomes:
            seconds[each["test"]] += each["seconds"]
        ran: Counter[str] = Counter()
        for each in outcomes:
            ran[each["test"]] += each.get("count", 1)
        cost: Counter[str] = Counter()
        for test, runs in missing.items():
            cost[file_of(test)] += runs * seconds[test] / max(1, ran[test])
        most = dict.fromkeys(map(file_of, self.tests), 0)
        for test, runs in missing.items():
            most[file_of(test)] = max(most[file_of(test)], runs)
        shares: list[Share] = []
        small: list[str] = []
        for file in sorted((file for file in most if most[file]), key=lambda file: cost[file]):
            if cost[file] > SHARE_SECONDS:
                runs = math.ceil(most[file] * SHARE_SECONDS / cost[file])
                shares += math.ceil(most[file] / runs) * [Share((file,), runs)]
                continue
            if small and sum(cost[each] for each in small) + cost[file] > SHARE_SECONDS:
                shares.append(Share(tuple(small), self.options.times))
                small = []
            small.append(file)
        return [Share(tuple(small), self.options.times), *shares] if small else shares


def file_of(test: str) -> str:
    """Return the file of a test.

    >>> file_of("tests/test_a.py::test_b[c::d]")
    'tests/test_a.py'
    """
    return test.partition("::")[0]


def run(options: argparse.Namespace) -> int:
    """Run the tests again and again beside a busy loop on every core; 0 if none failed."""
    cores = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores)]
    try:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
            results = options.results or Path(folder, "results.jsonl")
            repeated = Repeated(results.resolve(), options)
            before = len(read_runs(results))
            ran = {each["test"] for each in read_runs(results)}
            files = list(dict.fromkeys(file_of(test) for test in repeated.tests if test not in ran))
            first = [Share(tuple(files[at :: options.jobs]), 1) for at in range(options.jobs)]
            list(pool.map(repeated.run, [share for share in first if share.files]))
            list(pool.map(repeated.run, repeated.shares()))
            outcomes = read_runs(results)
            lines = [json.dumps(each) + "\n" for each in joined(outcomes)]
            results.write_text("".join(lines))
            return report(repeated, outcomes[before:])
    finally:
        for process in busy:
            process.kill()
            process.wait()


def report(repeated: Repeated, outcomes: list[dict[str, Any]]) -> int:
    """Print every failure and the summary; return 1 if a test failed."""
    ran = Counter(each["test"] for each in outcomes)
    failures = {each["test"]: each["why"] for each in outcomes if each["outcome"] == "failed"}
    failed = Counter(each["test"] for each in outcomes if each["outcome"] == "failed")
    for name, why in failures.items():
        print(f"--- {name}\n{why}")
    for output in repeated.broken:
        print(f"--- pytest ended early\n{output}")
    for name, count in failed.most_common():
        print(f"{count} of {ran[name]}  {name}")
    missing = repeated.missing()
    complete = sum(runs == 0 for runs in missing.values())
    print(
        f"{len(outcomes)} runs, {failed.total()} failures; {complete} of {len(missing)} tests have "
        f"{repeated.options.times} runs without a failure"
    )
    return int(bool(failures or repeated.broken))
