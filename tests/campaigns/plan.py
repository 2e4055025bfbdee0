"""The trials of a campaign, run by a few processes side by side."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.campaigns.commands import interrupt_train, kill_train
from tests.campaigns.cycles import cycles
from tests.campaigns.elastic import KINDS_HERE, elastic
from tests.campaigns.files import kill_manager, manager_operations
from tests.campaigns.kills import EVERY_KIND, Watched, interrupt, kill
from tests.campaigns.loaders import KINDS
from tests.campaigns.orders import ORDERS
from tests.campaigns.processes import adopt_orphans
from tests.campaigns.results import Outcome, as_json
from tests.campaigns.storages import Storages
from tests.campaigns.torchrun import kill_under_torchrun

TRIALS: dict[str, Callable[..., Watched]] = {
    "kill": kill,
    "interrupt": interrupt,
    "elastic": elastic,
    "cycles": cycles,
    "manager": kill_manager,
    "train": kill_train,
    "interrupt train": interrupt_train,
    "torchrun": kill_under_torchrun,
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One call of a function of `TRIALS`; its text is what repeats it."""

    name: str
    arguments: tuple[str | int, ...]
    number: int  # of trials that are equal otherwise
    seed: int

    def __str__(self) -> str:
        return json.dumps([self.name, *self.arguments, self.number, self.seed])

    @classmethod
    def parse(cls, text: str) -> Trial:
        name, *arguments, number, seed = json.loads(text)
        return cls(name, tuple(arguments), number, seed)

    def run(self, storages: Storages) -> Watched:
        return TRIALS[self.name](storages, *self.arguments, str(self))


def every_trial(storages: Storages, seed: int) -> list[Trial]:
    """The campaign at full length: about 750 kills, 300 schedules, 70 interrupts, 1,200 cycles."""
    plan: list[tuple[str, tuple[str | int, ...], int]] = []
    for kind, storage in EVERY_KIND:
        plan += [
            ("kill", (kind, storage, world), 2 if world == 1 else 1) for world in KINDS[kind].ranks
        ]
        plan += [("cycles", (kind, storage, 20), 1)]
        plan += [("interrupt", (kind, storage), 1)]
    for kind in ("ChunkedDataLoader threads", "ChunkedDataLoader processes", "StreamLoader"):
        plan += [("kill", (kind, "zarr blosc", 0), 4)]  # another number of ranks at every start
    # on other ranks, batches by length are cut differently at the end of an epoch
    plan += [("kill", (kind, "memory", 0), 1) for kind in ORDERS if kind != "lengths"]
    plan += [
        ("elastic", (kind, storage, 3 if "processes" in kind else 13), 1)
        for kind, storage in KINDS_HERE
    ]
    plan += [
        ("manager", (operation,), 1) for operation in range(1, manager_operations(storages) + 1)
    ]
    plan += [("manager", (0,), 30)]
    plan += [("train", (0,), 10), ("train", (1,), 10), ("interrupt train", (), 6)]
    # every start imports torch on every rank: these cost as much as fifty other kills
    plan += [("torchrun", ("StreamLoader", "zarr blosc"), 2)]
    plan += [("torchrun", ("ChunkedDataLoader processes", "npy"), 2)]
    plan += [("torchrun", ("mixture, stream", "zarr blosc"), 1)]
    trials = [
        Trial(name, arguments, number, seed)
        for name, arguments, count in plan
        for number in range(count)
    ]
    random.Random(seed).shuffle(trials)  # a campaign that runs out of time has tried every sort
    return trials


SAMPLE = {"kill": 4, "interrupt": 2, "cycles": 1, "elastic": 2, "manager": 3, "train": 1}
SHORT = {"cycles": 6, "elastic": 2}  # cycles and schedules of a trial of the sample


def sample(trials: list[Trial], seed: int) -> list[Trial]:
    """Return a few random trials of every kind, the long ones shortened."""
    rng = random.Random(seed)
    drawn = [
        trial
        for name, count in SAMPLE.items()
        for trial in rng.sample([each for each in trials if each.name == name], count)
    ]
    rng.shuffle(drawn)  # a sample that runs out of time has tried several kinds
    return [
        replace(trial, arguments=(*trial.arguments[:-1], SHORT[trial.name]))
        if trial.name in SHORT
        else trial
        for trial in drawn
    ]


def run_side_by_side(
    storages: Storages, trials: list[Trial], jobs: int, seconds: float
) -> Iterator[Outcome]:
    """Outcomes as they come, from ``jobs`` processes; trials not begun in time are left out."""
    reading, writing = os.pipe()
    ends = time.monotonic() + seconds
    pids = []
    for job in range(jobs):
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            run_share(storages, trials[job::jobs], writing, ends)
        pids.append(pid)
    os.close(writing)
    with open(reading) as lines:
        for line in lines:
            yield Outcome(**json.loads(line))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if any(codes):
        raise RuntimeError(f"processes of the campaign ended with {codes}")


def run_share(storages: Storages, trials: list[Trial], writing: int, ends: float) -> None:
    """Run trials one after the other and write their outcomes, then end this process."""
    code = 1
    try:
        adopt_orphans()
        waiting: list[Watched] = []
        for trial in trials:
            if time.monotonic() > ends:
                break
            waiting.append(run_trial(storages, trial))
            for watched in [each for each in waiting if each.settled()]:
                report(watched.outcome, writing)
                waiting.remove(watched)
        for watched in waiting:
            watched.settled(wait=True)
            report(watched.outcome, writing)
        code = 0
    except BaseException:  # noqa: BLE001  # else the fork would return into the campaign
        traceback.print_exc()
    finally:
        os._exit(code)


def run_trial(storages: Storages, trial: Trial) -> Watched:
    """A trial; one that fails itself is an error too."""
    try:
        return trial.run(storages)
    except Exception:  # noqa: BLE001  # named in the report, with its trial
        outcome = Outcome(trial.name, "", "", "the trial itself", str(trial))
        outcome.fail(traceback.format_exc())
        return Watched(outcome).ended()


def report(outcome: Outcome, writing: int) -> None:
    """One line, in one write: lines of several processes do not mix."""
    outcome.notes = [note[-1500:] for note in outcome.notes[:2]]  # a pipe keeps 4,096 bytes whole
    with contextlib.suppress(BrokenPipeError):
        os.write(writing, f"{json.dumps(as_json(outcome))}\n".encode())


def prepare() -> None:
    """Import what trials use, before anything is forked."""
    from importlib import import_module

    for module in ("torch.utils.tensorboard", "penstock.training.run", "datasets"):
        import_module(module)
