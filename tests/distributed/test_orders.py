"""Composed orders under torchrun: a run that is killed delivers what an undisturbed one does."""

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
from tests.campaigns.orders import HOLES, ORDERS, PARTS, SHARES, STAGES, WEIGHTS
from tests.campaigns.storages import ROWS
from tests.distributed.orders_program import EPOCHS, TIMED, make, steps_of

ROOT = Path(__file__).parents[2]


def undisturbed(name, folder, world):
    """Step by step, what all ranks get."""
    ranks = []
    for rank in range(world):
        with make(name, folder, rank, world) as loader:
            ranks.append([step["ids"] for step in steps_of(name, loader)])
    return [list(chain(*parts)) for parts in zip(*ranks, strict=True)]


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


def check_shares(steps):
    """After every step, every member came as often as asked, within one cycle of each lane."""
    numbers = np.array(list(chain(*steps)))
    member = np.searchsorted(PARTS[1:3], numbers, side="right")
    for (begin, end), shares in zip(
        zip(STAGES, [*STAGES[1:], len(numbers)], strict=True), SHARES, strict=True
    ):
        cycle = sum(shares)
        for at in range(begin, end, 24):
            count = np.bincount(member[begin:at], minlength=3)
            asked = np.array(shares) / cycle * (at - begin)
            assert (np.abs(count - asked) <= 12 * max(map(sum, SHARES))).all()


def check(name, steps):
    """What an order promises of the joined stream."""
    numbers = list(chain(*steps))
    if "mixture" in name:
        check_shares(steps)
    elif name == "weights":
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
    elif name == "lengths":
        assert set(Counter(numbers).values()) == {EPOCHS}
    elif name == "packing":
        # sequences are full, except for the last one of a corpus: shares of places and of tokens
        share = sum(number < 100_000 for number in numbers) / len(numbers)
        assert abs(share - 0.75) <= 4 * 16 / len(numbers) + 16 * EPOCHS / len(numbers)
    elif name == "packing, stream":
        assert set(Counter(numbers).values()) == {EPOCHS}


def run(folder, world, kills, seconds):
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
    for name in [*ORDERS, TIMED]:
        want = undisturbed(name, folder, world)
        got, steps = joined(name, folder, len(kills) + 1, world)
        assert got == want, name
        check(name, got)
    sizes = {line["chunk"] for lines in steps for line in lines}
    assert len(sizes) > 1  # decided by the clock of rank 0, the same on all ranks
    decided = [json.loads(path.read_text()) for path in folder.glob("decisions-*.json")]
    assert len(decided) == (world if len(kills) > 1 else 0)
    assert all(each == decided[0] and len(set(each)) == 2 for each in decided)


def test_a_killed_run_of_two_ranks_delivers_what_an_undisturbed_one_does(tmp_path):
    run(tmp_path, 2, [[17, 1, "skips"]], seconds=110)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_runs_killed_at_random_steps_deliver_what_undisturbed_ones_do(tmp_path, world, seed):
    rng, kills, step = random.Random(f"{world}/{seed}"), [], 0
    for _ in range(4):
        step = rng.randint(step + 1, step + 7)  # every order has 30 steps or more
        kills.append([step, rng.randrange(world), rng.choice([*ORDERS, TIMED])])
        if rng.random() < 0.3:
            step = max(0, step // 3 * 3 - 1)  # once more in what is repeated
    run(tmp_path, world, kills, seconds=600)
