"""Training runs that are killed or interrupted at random moments, resumed, and compared."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.campaigns.loaders import KINDS, Options
from tests.campaigns.processes import HANG_SECONDS, INTERRUPTED, Child
from tests.campaigns.results import Outcome
from tests.campaigns.storages import Storages
from tests.campaigns.training import Job, delivered, train

KILLS = 4  # of one run, at most; then it may end
ONE_STEP_BYTES = 100  # of a diary: its first line is shorter
GLOBAL_BATCH = 24  # divides the rows, and is divided by every number of ranks used here


def draw_job(kind: str, storage: str, rng: random.Random) -> Job:
    """A training run over a loader and a storage."""
    options = Options(rng.choice([1, 2]), GLOBAL_BATCH, rng.choice([None, 5]))
    return Job(kind, storage, options, every=rng.choice([1, 1, 3]))


@cache
def uninterrupted(storages: Storages, job: Job, world: int) -> tuple[list[list[Any]], float]:
    """The steps of a run that nobody disturbs, and its seconds."""
    room = Path(mkdtemp(dir=storages.folder))
    began = time.monotonic()
    children = start(storages, replace(job, step_seconds=0.0), room, 0, world)
    codes = [child.wait() for child in children]
    took = time.monotonic() - began
    if any(codes):
        raise AssertionError(f"an undisturbed run failed with {codes}: {errors_of(children)}")
    return delivered(room), took


def start(storages: Storages, job: Job, room: Path, number: int, world: int) -> list[Child]:
    """All ranks of one start of a run."""
    children = []
    for rank in range(world):
        own = room / f"rank-{number}-{rank}"
        own.mkdir()
        children.append(Child(train, storages, job, room, number, rank, world, room=own))
    return children


def kill(storages: Storages, kind: str, storage: str, world: int, trial: str) -> Watched:
    """SIGKILL one rank at random moments, up to `KILLS` times, and let the run end then.

    ``world`` 0 draws another number of ranks for every start.
    """
    rng = random.Random(trial)
    job, room = draw_job(kind, storage, rng), Path(mkdtemp(dir=storages.folder))
    ranks = "changing" if world == 0 else str(world)
    outcome = Outcome(kind, storage, ranks, "SIGKILL", trial)
    want, took = uninterrupted(storages, replace(job, every=1), world or 1)
    took += len(want) * job.step_seconds
    watched = Watched(outcome)
    for number in range(KILLS + 1):
        size = world or rng.choice([1, 2, 3, 4])
        children = start(storages, job, room, number, size)
        watched.children += children
        victim = rng.choice(children)
        if number < KILLS and not ends_before(
            victim, moment(rng, room / f"diary-{number}-0", job, took)
        ):
            victim.kill()
            outcome.count += 1
            for other in children:  # as torchrun does, once a rank is gone
                if other is not victim and other.wait(rng.uniform(0, 0.05)) is None:
                    other.kill()
            continue
        finish(children, outcome)
        break
    compare(outcome, room, want, ordered=world > 0)
    return watched.ended()


@dataclass(frozen=True, slots=True)
class Moment:
    """When to send a signal: seconds after the fork, or after the first step of a start."""

    seconds: float
    diary: Path | None = None


def moment(rng: random.Random, diary: Path, job: Job, took: float) -> Moment:
    """A random moment of a start: half of them anywhere, half of them while it trains."""
    if rng.random() < 0.5:
        return Moment(rng.uniform(0, 0.6 * took))
    return Moment(rng.uniform(0, 12 * job.step_seconds), diary)


def ends_before(child: Child, at: Moment) -> bool:
    """Wait for the moment; True if the process ended before."""
    if at.diary is not None:
        while not at.diary.exists() or at.diary.stat().st_size < ONE_STEP_BYTES:
            if child.wait(0.002) is not None:
                return True
    return child.wait(at.seconds) is not None


def interrupt(storages: Storages, kind: str, storage: str, trial: str) -> Watched:
    """SIGINT at a random moment: the process ends by itself and cleanly, and the run resumes."""
    rng = random.Random(trial)
    job, room = draw_job(kind, storage, rng), Path(mkdtemp(dir=storages.folder))
    outcome = Outcome(kind, storage, "1", "SIGINT", trial)
    want, took = uninterrupted(storages, replace(job, every=1), 1)
    took += len(want) * job.step_seconds
    (first,) = start(storages, job, room, 0, 1)
    watched = Watched(outcome, [first], seconds=5.0)  # it ends by itself: nothing is left then
    if not ends_before(first, moment(rng, room / "diary-0-0", job, took)):
        first.interrupt()
        outcome.count += 1
        finish([first], outcome, code=INTERRUPTED)
        finish(start(storages, job, room, 1, 1), outcome)
    compare(outcome, room, want, ordered=True)
    return watched.ended()


def finish(children: list[Child], outcome: Outcome, code: int = 0) -> None:
    """Wait for processes that end by themselves; one that makes no progress hangs."""
    began = time.monotonic()
    for child in children:
        ended = wait_for(child)
        outcome.slowest_seconds = max(outcome.slowest_seconds, time.monotonic() - began)
        if ended is None:
            outcome.hangs += 1
            outcome.notes.append(f"hangs: {errors_of([child])}")
            child.end_all()
        elif ended not in (code, 0):
            outcome.fail(f"exit code {ended}: {errors_of([child])}")


def wait_for(child: Child) -> int | None:
    """The exit code; None if it delivered nothing for as long as it may take."""
    while True:
        before = written(child)
        code = child.wait()
        if code is not None or written(child) == before:
            return code


def written(child: Child) -> int:
    """The bytes in the diaries of its run."""
    return sum(diary.stat().st_size for diary in child.room.parent.glob("diary-*"))


def compare(outcome: Outcome, room: Path, want: list[list[Any]], *, ordered: bool) -> None:
    """Compare the joined steps with those of an uninterrupted run."""
    if outcome.hangs or outcome.errors:
        return
    try:
        got = delivered(room)
    except AssertionError as error:
        outcome.fail(str(error))
        return
    if not ordered:  # on other ranks the samples of a step come in another order
        got, want = ([sorted(number for step in each for number in step)] for each in (got, want))
    outcome.compare(got, want)


def errors_of(children: list[Child]) -> str:
    """The end of what processes wrote to standard error."""
    return "\n".join((child.room / "stderr").read_text()[-3000:] for child in children)


class Watched:
    """An outcome whose processes may still leave something behind: looked at later."""

    def __init__(
        self,
        outcome: Outcome,
        children: list[Child] | None = None,
        seconds: float = HANG_SECONDS,
    ) -> None:
        self.outcome, self.children = outcome, children or []
        self._seconds, self._deadline = seconds, float("inf")

    def ended(self) -> Watched:
        """From now on the time counts in which everything must be gone."""
        self._deadline = time.monotonic() + self._seconds
        return self

    def settled(self, *, wait: bool = False) -> bool:
        """Is everything gone, or was it counted as left behind?"""
        while left := [each for child in self.children for each in child.leftovers()]:
            if time.monotonic() > self._deadline:
                self.outcome.leftovers += len(left)
                self.outcome.notes.append(f"left behind: {left[:9]}")
                for child in self.children:
                    child.end_orphans()
                return True
            if not wait:
                return False
            time.sleep(0.1)
        return True


EVERY_KIND = [(kind, storage) for kind, each in KINDS.items() for storage in each.storages]
