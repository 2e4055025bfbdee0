"""Tests that depend on time, many times, on a machine whose cores are all busy."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUSY = "while True: pass"
FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)


def run(options: argparse.Namespace) -> int:
    """Run the tests again and again beside a busy loop on every core; 0 if none ever failed."""
    ends, failed, runs = time.monotonic() + options.seconds, Counter[str](), 0
    cores = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores)]
    try:
        while runs < options.times and time.monotonic() < ends:
            runs += 1
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                    *("-m", "timing and not proof and not cuda", *options.tests),
                ],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            found = FAILURE.findall(done.stdout)
            failed.update(found)
            if done.returncode and not found:  # pytest itself failed
                print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
                return done.returncode
            print(f"run {runs} of {options.times}: {done.stdout.splitlines()[-1]}", flush=True)
            for name in found:
                print(f"  {name}", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    for name, count in failed.most_common():
        print(f"{count} of {runs}  {name}")
    print(f"{runs} runs, {len(failed)} tests failed at least once")
    return int(bool(failed))
