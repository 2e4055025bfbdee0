"""The commands of the campaigns."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.campaigns import flaky, page
from tests.campaigns.results import Outcome, table


def run(options: argparse.Namespace) -> int:
    """Run trials; 0 if nothing was lost, repeated, hung or left behind."""
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the server
    from tests.campaigns import plan
    from tests.campaigns.storages import Storages, make_storages
    from tests.s3_server import Server

    seed = time.time_ns() % 10**9 if options.seed is None else options.seed
    print(f"seed {seed}; repeat with --seed {seed}", flush=True)
    plan.prepare()
    folder, began = Path(tempfile.mkdtemp(prefix="penstock-campaign-")), time.monotonic()
    maker = multiprocessing.get_context("fork").Process(target=make_storages, args=[folder])
    maker.start()
    maker.join()
    server = Server(folder)
    try:
        storages = Storages(folder, server)
        trials = [plan.Trial.parse(text) for text in options.only]
        if not trials:
            trials = plan.every_trial(storages, seed)
        if options.sample:
            trials = plan.sample(trials, seed)
        if threading.active_count() > 1:
            raise RuntimeError(f"threads run before the first fork: {threading.enumerate()}")
        outcomes: list[Outcome] = []
        for outcome in plan.run_side_by_side(storages, trials, options.jobs, options.seconds):
            outcomes.append(outcome)
            if outcome.bad or options.verbose:
                print(outcome, flush=True)
    finally:
        server.kill()
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    took = time.monotonic() - began
    rows, bad = table(outcomes), sum(outcome.bad for outcome in outcomes)
    print(page.summary(rows))
    print(f"{len(outcomes)} of {len(trials)} trials in {took:.0f} s, {bad} of them failed")
    if options.record:
        page.record(rows, seed=seed, seconds=took, planned=len(trials))
    return int(bad > 0 or not outcomes)


def main() -> int:
    """Parse the command line and run a command."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns")
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="run trials")
    runs.add_argument("--sample", action="store_true", help="a few random trials of every sort")
    runs.add_argument("--seed", type=int, help="draws trials and moments; default: the time")
    runs.add_argument("--jobs", type=int, default=2, help="processes side by side")
    runs.add_argument("--seconds", type=float, default=3600.0, help="begin no trial after these")
    runs.add_argument("--only", action="append", default=[], help="a trial, as a failure names it")
    runs.add_argument("--record", action="store_true", help="write the results for `page`")
    runs.add_argument("--keep", action="store_true", help="keep the files of the trials")
    runs.add_argument("--verbose", action="store_true", help="name every trial")
    runs.set_defaults(command=run)
    pages = commands.add_parser("page", help="write docs/reliability.md from recorded results")
    pages.set_defaults(command=lambda _: page.write())
    repeats = commands.add_parser("flaky", help="repeat tests that depend on time")
    repeats.add_argument("--times", type=int, default=50)
    repeats.add_argument("--jobs", type=int, default=4, help="processes side by side: many wait")
    repeats.add_argument(
        "--seconds", type=float, default=6 * 3600.0, help="begin no run after these"
    )
    repeats.add_argument("--results", type=Path, help="a file that is kept, to continue later")
    repeats.add_argument("tests", nargs="*", help="for pytest, default: all with the mark timing")
    repeats.set_defaults(command=flaky.run)
    options = parser.parse_args()
    return options.command(options) or 0


if __name__ == "__main__":
    sys.exit(main())
