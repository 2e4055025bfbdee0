"""Loaders that are opened, left in the middle, and closed, again and again: nothing grows."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp

import psutil

from tests.campaigns.kills import Watched, draw_job, finish
from tests.campaigns.loaders import KINDS
from tests.campaigns.processes import HANG_SECONDS, Child
from tests.campaigns.results import Outcome
from tests.campaigns.storages import Storages

GROWTH_BYTES = 12 << 20  # allocators keep some; a leak of one batch a cycle is more
WARM_UP = 6  # cycles before the first measurement


def cycles(storages: Storages, kind: str, storage: str, count: int, trial: str) -> Watched:
    """Open, take a few batches, leave and close, ``count`` times in one process."""
    rng = random.Random(trial)
    outcome = Outcome(kind, storage, "1", "open, break, close", trial, count=count)

    def once() -> None:
        loader = KINDS[kind].make(storages, storage, draw_job(kind, storage, rng).options)
        for batch in islice(loader, rng.randrange(4)):
            KINDS[kind].ids(batch)
        loader.close()

    room = Path(mkdtemp(dir=storages.folder))
    child = Child(repeat, once, count, room=room, seconds=4 * HANG_SECONDS)
    finish([child], outcome)
    return Watched(outcome, [child], seconds=5.0).ended()


def repeat(once: Callable[[], None], count: int) -> None:
    """Call ``once``, and refuse growth of files, threads, children or memory."""
    for _ in range(WARM_UP):
        once()
    before = measure()
    for _ in range(count):
        once()
    after = measure()
    grown = {name: after[name] - before[name] for name in before}
    bounds = {"files": 0, "threads": 0, "children": 0, "bytes": GROWTH_BYTES}
    if any(grown[name] > bounds[name] for name in bounds):
        raise AssertionError(f"{count} cycles grew by {grown}")


def measure() -> dict[str, int]:
    """What a process holds."""
    gc.collect()
    own = psutil.Process()
    return {
        "files": own.num_fds(),
        "threads": len([t for t in threading.enumerate() if t.name.startswith("penstock-")]),
        "children": len(own.children(recursive=True)),
        "bytes": own.memory_info().rss,
    }
