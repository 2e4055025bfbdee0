"""Orders in a configuration, through ``penstock train``: trained as asked, killed and resumed."""

import signal
from itertools import pairwise

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


PACKED = {
    "cut": "{pack: tokens.npy, length: 10, lengths: lengths.npy, seed: 5}",
    "whole": "{pack: tokens.npy, length: 10, lengths: lengths.npy, split: false, seed: 5}",
    "once": "{pack: tokens.npy, length: 10, lengths: lengths.npy}",
    "mixture": "{mixture: {a: {pack: tokens.npy, length: 10, lengths: lengths.npy, seed: 5},"
    " b: {pack: others.npy, length: 10, lengths: lengths.npy}}, weights: {a: 3, b: 1}, until: 24}",
}


def packed(folder, name):
    project, numbers = prepared(folder), np.arange(LENGTHS.sum())
    np.save(project / "tokens.npy", numbers)
    np.save(project / "others.npy", numbers + 1000)
    text = (project / "tiny.yaml").read_text()
    for old, new in (
        ("recording.Recorder", "recording.PackedRecorder"),
        ("{_target_: recording.Numbers, size: 46}", PACKED[name]),
        ("  batch_size: 4", "  batch_size: 4\n  drop_last: false"),
    ):
        assert old in text
        text = text.replace(old, new)
    (project / "tiny.yaml").write_text(text)
    return project


@pytest.mark.parametrize("name", PACKED)
def test_packed_documents_that_are_killed_end_as_if_nothing_had_happened(commands, tmp_path, name):
    whole, killed = (packed(tmp_path / each, name) for each in ("whole", "killed"))
    done = commands(whole, "train", "tiny.yaml")
    assert done.code == 0, done.err
    state = final_state(whole / "run")
    seen, total = [token for step in state["seen"] for token in step], int(LENGTHS.sum())
    if name == "mixture":  # shares of tokens, but for the last sequence of a member
        assert abs(sum(token < 1000 for token in seen) - 0.75 * len(seen)) <= 10
    else:  # every token once in a pass; with a seed, in other batches of other sequences
        passes = [seen[:total], seen[total:]]
        assert [sorted(each) for each in passes] == [list(range(total))] * 2
        follow = [set(pairwise(each)) for each in passes]
        documents = set(np.cumsum(LENGTHS).tolist())
        cuts = [  # where documents are cut, modulo the tokens of a sequence
            {t % 10 for t in set(range(1, total)) - documents if (t - 1, t) not in pairs}
            for pairs in follow
        ]
        assert [len(each) for each in cuts] == [0 if name == "whole" else 1] * 2
        assert (cuts[0] != cuts[1]) == (name == "cut")
    done = commands(killed, "train", "tiny.yaml", AT="train-7:SIGKILL")
    assert done.code == -signal.SIGKILL
    assert_same(resumed(commands, killed), state)
