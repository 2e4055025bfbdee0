"""Kills between the file operations of a checkpoint: write, rename, link, prune.

Python announces file operations to audit hooks, so that every place between two of them is reached
without changing the code that is tested.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from penstock import CheckpointManager
from tests.campaigns.kills import Watched, finish
from tests.campaigns.processes import HANG_SECONDS, Child
from tests.campaigns.results import Outcome
from tests.campaigns.storages import Storages

OPERATIONS = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.truncate", "open"}
BETWEEN = "SIGKILL between file operations"
KEPT = 3  # checkpoints that the manager keeps: the best, and the last two
SAVES = 3  # of the process that is killed


def before_operations(folder: Path, call: Callable[[int], object]) -> None:
    """Call ``call(1)``, ``call(2)``, ... before this process changes files in ``folder``."""
    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in OPERATIONS or not isinstance(args[0], str | os.PathLike):
            return
        if event == "open" and not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        if os.path.abspath(os.fspath(args[0])).startswith(str(folder)):
            seen += 1
            call(seen)

    sys.addaudithook(hook)


def kill_before(folder: Path, number: int) -> None:
    """Kill this process before its ``number``-th file operation in ``folder``."""

    def kill(seen: int) -> None:
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    before_operations(folder, kill)


def count_operations(folder: Path, room: Path, run: Callable[[], object]) -> int:
    """The file operations of ``run`` in ``folder``, counted in a process of its own."""
    changes = room / "changes"

    def count() -> None:
        descriptor = os.open(changes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        before_operations(folder, lambda _: os.write(descriptor, b"x"))
        run()

    outcome = Outcome("", "", "", "counting file operations", "")
    finish([Child(count, room=room)], outcome)
    if outcome.bad:
        raise AssertionError(str(outcome))
    return len(changes.read_bytes())


def save(folder: Path, first: int, count: int) -> None:
    """Save ``count`` checkpoints from number ``first`` on."""
    manager = CheckpointManager(folder, keep_best_k=1, keep_last_n=2)
    for number in range(first, first + count):
        model = torch.nn.Linear(100, 100)
        torch.nn.init.constant_(model.weight, number)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        manager.save(model, optimizer, None, number, {"val_loss": float(number)})
        next_number = folder.parent / "confirmed.next"
        next_number.write_text(str(number))
        next_number.replace(folder.parent / "confirmed")  # at once: a kill leaves no empty file


@cache
def manager_operations(storages: Storages) -> int:
    """How many file operations the saves of `kill_manager` make."""
    room = Path(mkdtemp(dir=storages.folder))
    folder = room / "checkpoints"
    finish([Child(save, folder, 0, KEPT, room=room)], Outcome("", "", "", "", ""))
    return count_operations(folder, room, lambda: save(folder, KEPT, SAVES))


def kill_manager(storages: Storages, operation: int, trial: str) -> Watched:
    """Kill a process that saves checkpoints; ``operation`` 0: at a random moment."""
    rng, room = random.Random(trial), Path(mkdtemp(dir=storages.folder))
    folder, event = room / "checkpoints", BETWEEN if operation else "SIGKILL"
    outcome = Outcome("CheckpointManager", "checkpoint files", "1", event, trial)

    def saves() -> None:
        if operation:
            kill_before(folder, operation)
        save(folder, KEPT, SAVES)

    finish([Child(save, folder, 0, KEPT, room=room)], outcome)
    child = Child(saves, room=room)
    code = child.wait(HANG_SECONDS if operation else rng.uniform(0, 0.08))
    if code is None:
        outcome.hangs += bool(operation)
        code = child.kill()
    outcome.count += code == -signal.SIGKILL
    confirmed = int((room / "confirmed").read_text())
    check = Child(check_saved, folder, confirmed, room=room)
    finish([check], outcome)
    return Watched(outcome, [child, check]).ended()


def check_saved(folder: Path, confirmed: int) -> None:
    """The last checkpoint is the confirmed one or the next, and every file is whole."""
    manager = CheckpointManager(folder, keep_best_k=1, keep_last_n=2)
    latest = manager.load(manager.get_latest())
    assert latest["epoch"] in (confirmed, confirmed + 1), (latest["epoch"], confirmed)
    assert (latest["model_state_dict"]["weight"] == latest["epoch"]).all()
    assert manager.load(manager.get_best())["epoch"] == 0
    for path in folder.glob("checkpoint_*.pt"):
        manager.load(path)
    save(folder, latest["epoch"] + 1, 1)
    unfinished = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert not unfinished, f"unfinished files stay: {unfinished}"
    kept = list(folder.glob("checkpoint_*.pt"))
    assert len(kept) == KEPT, f"{len(kept)} checkpoints are kept, not {KEPT}"
