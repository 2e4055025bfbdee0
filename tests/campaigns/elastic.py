"""Random sequences of ranks, batch sizes and chunk sizes, with one state handed on."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.campaigns.kills import Watched, finish
from tests.campaigns.loaders import KINDS, Kind, Options
from tests.campaigns.processes import Child
from tests.campaigns.results import Outcome
from tests.campaigns.storages import ROWS, Storages
from tests.campaigns.training import EPOCHS

KINDS_HERE = [
    (kind, storage) for kind, each in KINDS.items() if each.elastic for storage in each.storages
]
LARGEST_WORLD = 6


def schedule(storages: Storages, kind: str, storage: str, rng: random.Random) -> Counted:
    """Run one random schedule on loaders of this process, a loader for every rank."""
    seed, counted, state = rng.randrange(100), Counted(), None
    while state is None or state["epoch"] < EPOCHS:
        world = rng.randint(1, 2 if "processes" in kind else LARGEST_WORLD)
        batch, chunk = rng.randint(1, 16), rng.choice([None, 3, 7])
        with ExitStack() as stack:
            loaders = []
            for rank in range(world):
                options = Options(seed, batch, chunk, rank, world)
                loader = KINDS[kind].make(storages, storage, options)
                loaders.append(stack.enter_context(closing(loader)))
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
            steps = rng.randint(1, 1 + 2 * ROWS // (world * batch))
            counted.run(KINDS[kind], loaders, steps, state or loaders[0].state_dict())
            state = loaders[rng.randrange(world)].state_dict()
    return counted


class Counted:
    """How often every sample of every epoch came, on all ranks together."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[int, Any]] = Counter()
        self.given_up = 0  # ends of epochs that the ranks could not share

    def run(self, kind: Kind, loaders: list[Any], steps: int, before: dict[str, Any]) -> None:
        """Take steps on all ranks from state ``before``, and compare their states after each."""
        streams = [forever(loader) for loader in loaders]
        for _ in range(steps):
            ids = [each for stream in streams for each in kind.ids(next(stream))]
            after, *others = [loader.state_dict() for loader in loaders]
            if any(other != after for other in others):
                raise AssertionError(f"states of ranks differ: {after}, {others}")
            epoch = after["epoch"] - (after["position"] == 0)
            begin = before["position"] if epoch == before["epoch"] else 0
            if epoch > before["epoch"] and before["position"]:
                self.give_up(ROWS - before["position"], len(loaders))
            if epoch < EPOCHS and after["position"] == 0:
                self.give_up(ROWS - begin - len(ids), len(loaders))
            if epoch >= EPOCHS:
                return
            self.seen.update((epoch, each) for each in ids)
            before = after

    def give_up(self, rest: int, world: int) -> None:
        """The end of an epoch that the ranks cannot share: fewer samples than ranks."""
        if not 0 <= rest < world:
            raise AssertionError(f"{rest} samples of an epoch were left out on {world} ranks")
        self.given_up += rest


def forever(loader: Any) -> Iterator[Any]:
    """Batch after batch, over the ends of chunks and epochs."""
    while True:
        yield from loader


def check(storages: Storages, kind: str, storage: str, trial: str) -> None:
    """Raise if a schedule repeats or loses a sample."""
    counted = schedule(storages, kind, storage, random.Random(trial))
    often = [each for each, count in counted.seen.items() if count != 1]
    if often:
        raise AssertionError(f"repeated (epoch, sample): {often[:9]}")
    if len(counted.seen) + counted.given_up != EPOCHS * ROWS:
        raise AssertionError(
            f"{len(counted.seen)} of {EPOCHS * ROWS} samples came, {counted.given_up} were given up"
        )


def elastic(storages: Storages, kind: str, storage: str, count: int, trial: str) -> Watched:
    """Several schedules, each in a process of its own."""
    outcome = Outcome(kind, storage, f"1-{LARGEST_WORLD}", "ranks change", trial, count=count)
    room, watched = Path(mkdtemp(dir=storages.folder)), Watched(outcome, seconds=5.0)
    for number in range(count):
        child = Child(check, storages, kind, storage, f"{trial}/{number}", room=room)
        watched.children.append(child)
        finish([child], outcome)
    return watched.ended()
