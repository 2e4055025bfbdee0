"""Orders in a configuration, through ``penstock train``: trained as asked, killed and resumed."""

import signal

import numpy as np
import pytest

from tests.cli.projects import final_state, new_project
from tests.cli.test_train_resume import assert_same, resumed

SAMPLES, LENGTHS = 46, np.arange(46) % 9 + 1
PRIORITY = "{parts: {hard: [0, 10], rest: null}, weights: {hard: 1, rest: 1}}"
ORDERS = {
    "priority": [f"train.priority={PRIORITY}"],
    "weights": ["train.weights=weights.npy", "train.epoch_samples=40"],
    "by length": ["train.batch_by_length={lengths: lengths.npy, max_tokens: 30, group: 2}"],
}


def prepared(folder):
    project = new_project(folder)
    np.save(project / "weights.npy", np.arange(SAMPLES) % 4)
    np.save(project / "lengths.npy", LENGTHS)
    return project


@pytest.mark.parametrize("name", ORDERS)
def test_a_killed_run_ends_as_if_nothing_had_happened(commands, tmp_path, name):
    whole, killed = (prepared(tmp_path / each) for each in ("whole", "killed"))
    done = commands(whole, "train", "tiny.yaml", *ORDERS[name])
    assert done.code == 0, done.err
    state = final_state(whole / "run")
    seen = [sample for step in state["seen"] for sample in step]
    if name == "priority":  # half of all are of the first ten samples
        assert abs(sum(sample < 10 for sample in seen) - len(seen) / 2) <= 2
    elif name == "weights":
        assert set(seen) <= {n for n in range(SAMPLES) if n % 4} and len(seen) == 80
    else:
        assert all(len(step) * LENGTHS[step].max() <= 30 for step in state["seen"])
        assert sorted(seen) == sorted([*range(SAMPLES)] * 2)
    done = commands(killed, "train", "tiny.yaml", *ORDERS[name], AT="train-7:SIGKILL")
    assert done.code == -signal.SIGKILL
    assert_same(resumed(commands, killed, *ORDERS[name]), state)
    plan = commands(whole, "plan", "tiny.yaml", *ORDERS[name], "--sample", "11")
    assert plan.code == 0 and "epoch 0" in plan.out
