"""`penstock train`, killed at random moments or between file operations, and resumed."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from tests.campaigns.files import BETWEEN, count_operations, kill_before
from tests.campaigns.kills import Watched, finish
from tests.campaigns.processes import HANG_SECONDS, INTERRUPTED, Child
from tests.campaigns.results import Outcome
from tests.campaigns.storages import Storages
from tests.cli.projects import PENSTOCK, final_state, new_project

SECONDS = 2 * HANG_SECONDS  # imports and logs of Lightning, on a busy machine
KILLS = 3  # of one run, at most; then it may end


def command(project: Path, operation: int = 0, *args: str) -> None:
    """`penstock train` in this process; killed before a file operation if that is not 0."""
    from penstock.cli import main

    os.chdir(project)
    sys.path.insert(0, str(project))
    sys.argv = [str(PENSTOCK), "train", "tiny.yaml", *args]
    if operation:
        kill_before(project / "run" / "checkpoints", operation)
    try:
        main()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            raise KeyboardInterrupt from ended
        if ended.code:
            raise RuntimeError(f"penstock train ended with {ended.code}") from ended


@cache
def uninterrupted(storages: Storages) -> tuple[dict[str, Any], float]:
    """The last checkpoint of a run that nobody disturbs, and its seconds."""
    room = Path(mkdtemp(dir=storages.folder))
    project, began = new_project(room / "project"), time.monotonic()
    outcome = Outcome("penstock train", "", "1", "", "")
    finish([Child(command, project, room=room, seconds=SECONDS)], outcome)
    if outcome.bad:
        raise AssertionError(str(outcome))
    return final_state(project / "run"), time.monotonic() - began


@cache
def operations(storages: Storages) -> int:
    """How many file operations a whole run makes among its checkpoints."""
    room = Path(mkdtemp(dir=storages.folder))
    project = new_project(room / "project")
    return count_operations(project / "run" / "checkpoints", room, lambda: command(project))


def kill_train(storages: Storages, between: int, trial: str) -> Watched:
    """Kill a run up to `KILLS` times; ``between``: before file operations, else at any moment."""
    rng, room = random.Random(trial), Path(mkdtemp(dir=storages.folder))
    event = BETWEEN if between else "SIGKILL"
    outcome = Outcome("penstock train", "checkpoint files", "1", event, trial)
    state, took = uninterrupted(storages)
    project, watched = new_project(room / "project"), Watched(outcome)
    for number in range(KILLS + 1):
        last = number == KILLS
        operation = rng.randint(1, operations(storages)) if between and not last else 0
        resume = ["--resume"] if number else []
        child = Child(command, project, operation, *resume, room=room, seconds=SECONDS)
        watched.children.append(child)
        if not last and not between and child.wait(rng.uniform(0, took)) is None:
            child.kill()
        code = child.wait()
        if code == -signal.SIGKILL:
            outcome.count += 1
            continue
        finish([child], outcome)
        break
    if not outcome.bad:
        compare(outcome, project / "run", state)
    return watched.ended()


def interrupt_train(storages: Storages, trial: str) -> Watched:
    """SIGINT at a random moment: the run saves and ends, and is resumed to the same end."""
    rng, room = random.Random(trial), Path(mkdtemp(dir=storages.folder))
    outcome = Outcome("penstock train", "checkpoint files", "1", "SIGINT", trial)
    state, took = uninterrupted(storages)
    project = new_project(room / "project")
    first = Child(command, project, 0, room=room, seconds=SECONDS)
    if first.wait(rng.uniform(0, took)) is None:
        first.interrupt()
        outcome.count += 1
        finish([first], outcome, code=INTERRUPTED)
        finish([Child(command, project, 0, "--resume", room=room, seconds=SECONDS)], outcome)
    if not outcome.bad:
        compare(outcome, project / "run", state)
    return Watched(outcome, [first], seconds=5.0).ended()


def compare(outcome: Outcome, run: Path, want: dict[str, Any]) -> None:
    """The run ended with the samples and the weights of an undisturbed one, and nothing else."""
    got = final_state(run)
    outcome.compare(got["seen"], want["seen"])
    weights = got["state_dict"]["weight"], want["state_dict"]["weight"]
    if not outcome.bad and not torch.equal(*weights):
        outcome.fail(f"the weights differ: {weights}")
    other = [path.name for path in (run / "checkpoints").iterdir() if path.suffix != ".ckpt"]
    outcome.leftovers += len(other)
    outcome.notes += [f"unfinished files stay: {other}"] if other else []
