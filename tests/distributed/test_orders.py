"""Composed orders on ranks: a run that is killed delivers what an undisturbed one does."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from penstock.order.weighted import fixed_point
from tests.campaigns.orders import (
    HOLES,
    ORDERS,
    PACKED_SHARES,
    PACKED_STAGES,
    PARTS,
    SEQUENCE,
    SHARES,
    STAGES,
    WEIGHTS,
)
from tests.campaigns.storages import ROWS
from tests.distributed.orders_program import EPOCHS, TIMED, make, steps_of

PROGRAM = Path(__file__).with_name("orders_program.py")
ROOT = Path(__file__).parents[2]


def undisturbed(name, folder, world):
    """Step by step, what all ranks get; and the stages of a mixture."""
    ranks, stages = [], None
    for rank in range(world):
        with make(name, folder, rank, world) as loader:
            ranks.append([step["ids"] for step in steps_of(name, loader)])
            stages = loader.state_dict().get("stages")
    return [list(chain(*parts)) for parts in zip(*ranks, strict=True)], stages


def joined(name, folder, starts, world):
    """The same from what the ranks of all starts wrote down."""
    steps = []
    for start in range(starts):
        paths = [folder / f"{name}-{start}-{rank}" for rank in range(world)]
        if not paths[0].exists():  # the step of a kill was past the end of that order
            break
        diaries = [[json.loads(line) for line in p.read_text().splitlines()] for p in paths]
        del steps[diaries[0][0]["resumed"] :]
        for lines in zip(*(lines[1:] for lines in diaries), strict=False):  # a kill cuts some short
            assert {line["step"] for line in lines} == {len(steps) + 1}
            assert len({line["chunk"] for line in lines}) == 1  # ranks agree
            steps.append(lines)
    return [[number for line in lines for number in line["ids"]] for lines in steps], steps


def check_shares(name, steps, stages):
    """After every step, a member came as often as asked, within its part of a cycle a lane.

    Packed sequences are full, except for the last one of a corpus: shares of places are shares of
    tokens.
    """
    unit, short, edges = 1, 0, PARTS[1:3]
    if name == "packing":
        passes = 2 * EPOCHS  # at most, of either corpus
        unit, short, edges = SEQUENCE, passes * SEQUENCE, [100_000]
    asked = PACKED_SHARES if name == "packing" else SHARES
    places = PACKED_STAGES if name == "packing" else STAGES
    lanes = 12 if name.endswith("stream") else 1
    assert [counts for _, counts in stages] == asked
    for (begin, _), place, before in zip(stages[1:], places[1:], asked, strict=False):
        assert 0 <= begin - place < lanes * sum(before)  # with the next whole cycle
    ends = np.cumsum([0, *(len(step) if unit == 1 else 24 for step in steps)])
    came = [np.zeros(len(edges) + 1)]
    for step in steps:
        member = np.searchsorted(edges, step, side="right")
        came.append(came[-1] + np.bincount(member, minlength=len(edges) + 1))
    checked = 0
    for (begin, counts), stop in zip(stages, [*(at for at, _ in stages[1:]), None], strict=True):
        inside = [i for i, end in enumerate(ends) if begin <= end and (stop is None or end <= stop)]
        counts, first = np.array(counts), inside[0]
        # a step need not begin where a stage does: both ends of the range are inside a cycle
        most = 2 * lanes * counts * (1 - counts / counts.sum())
        for i in inside:
            due = counts / counts.sum() * (ends[i] - ends[first])
            assert (
                np.abs((came[i] - came[first]) / unit - due) <= most + short / unit + 1e-9
            ).all()
            checked += 1
    return checked


def check(name, steps, stages):
    """What an order promises of the joined stream."""
    numbers = list(chain(*steps))
    if stages is not None:
        assert check_shares(name, steps, stages) > len(steps) - 3
    elif "weights" in name:
        for epoch, weights in enumerate(WEIGHTS):
            units = fixed_point(weights).tolist()
            came = Counter(numbers[epoch * ROWS : (epoch + 1) * ROWS])
            for sample, unit in enumerate(units):
                due = Fraction(ROWS * unit, sum(units))
                assert due.__floor__() <= came[sample] <= due.__ceil__()
    elif "skips" in name:
        left_out = {(e, p) for e, a, b in HOLES for p in range(a, b)}
        assert len(numbers) == EPOCHS * ROWS - len(left_out)
        assert max(Counter(numbers).values()) <= EPOCHS
    elif name in ("lengths", "packing, stream", "select, stream"):
        assert set(Counter(numbers).values()) == {EPOCHS}


def torchrun(folder, world, kills, seconds):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(world), "--max-restarts", str(len(kills))),
            *("--monitor-interval=0.1", "-m", "tests.distributed.orders_program"),
            *(str(folder), json.dumps(kills)),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check_all(folder, world, kills):
    for name in [*ORDERS, TIMED]:
        want, stages = undisturbed(name, folder, world)
        got, steps = joined(name, folder, len(kills) + 1, world)
        assert got == want, name
        check(name, got, stages)
    sizes = {line["chunk"] for lines in steps for line in lines}
    assert len(sizes) > 1  # decided by the clock of rank 0, the same on all ranks
    decided = [json.loads(path.read_text()) for path in folder.glob("decisions-*.json")]
    assert len(decided) == (world if len(kills) > 1 else 0)
    assert all(each == decided[0] and len(set(each)) == 2 for each in decided)


def test_a_killed_run_of_two_ranks_delivers_what_an_undisturbed_one_does(commands, tmp_path):
    kills = [[17, 1, "skips"]]
    for start in range(len(kills) + 1):  # as torchrun does, in forks
        counted = {"TORCHELASTIC_RESTART_COUNT": str(start)}
        done = commands.ranks(2, tmp_path, PROGRAM, tmp_path, json.dumps(kills), **counted)
        assert (done.code == 0) == (start == len(kills)), done.err[-3000:]
    check_all(tmp_path, 2, kills)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_under_torchrun_runs_killed_at_random_steps_deliver_what_undisturbed_ones_do(
    tmp_path, world, seed
):
    rng, kills, step = random.Random(f"{world}/{seed}"), [], 0
    for _ in range(4):
        step = rng.randint(step + 1, step + 7)  # every order has 30 steps or more
        kills.append([step, rng.randrange(world), rng.choice([*ORDERS, TIMED])])
        if rng.random() < 0.3:
            step = max(0, step // 3 * 3 - 1)  # once more in what is repeated
    torchrun(tmp_path, world, kills, seconds=600)
    check_all(tmp_path, world, kills)
