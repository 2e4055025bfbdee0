"""A run loses a rank, continues with 2, loses one, continues with 3: every sample exactly once."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import zarr

from penstock.domains.steering import JASPERSteeringDataset, build_steering_directory

PROGRAM = Path(__file__).with_name("elastic_program.py")
EPOCHS = 2
LOADERS = ("chunked", "stream", "steering")


def draw_schedule(number):
    """4 ranks, one killed at a random step; then 2, one killed; then 3, to the end.

    No two ranks share a batch that divides: a batch of 5 on each leaves 3 or more samples in any
    epoch, so that none is too few for the ranks that go on.
    """
    rng = random.Random(number)
    loader = LOADERS[number % 3]
    samples = 5 * rng.randrange(40, 60) + rng.choice([0, 3, 4])
    steps = [EPOCHS * samples // 20, EPOCHS * samples // 10]
    first = rng.randrange(2, steps[0] * 3 // 4)
    second = rng.randrange(first, first + (steps[1] - 2 * first) * 3 // 4 + 2)
    return {
        "name": f"schedule-{number}",
        "loader": loader,
        "samples": samples,
        "workers": rng.choice([0, 2]) if loader != "stream" else 0,
        "chunk": rng.choice([None, 7]),
        "every": rng.choice([1, 3, 5]),
        "epochs": EPOCHS,
        "runs": [
            {"world": 4, "batch": 5, "killed": [rng.randrange(4), first]},
            {"world": 2, "batch": 5, "killed": [rng.randrange(2), second]},
            {"world": 3, "batch": 5},
        ],
    }


def everyone(folder, schedule):
    """What an epoch of it has, by number or, of steering, by relevance; made where it is not."""
    samples = schedule["samples"]
    if schedule["loader"] == "steering":
        return everyone_of_steering(folder / f"steering-{samples}", samples)
    if schedule["loader"] == "stream" and not (folder / f"{samples}.zarr").exists():
        zarr.create_array(folder / f"{samples}.zarr", data=np.arange(samples), chunks=(8,))
    return Counter(range(samples))


def everyone_of_steering(directory, samples):
    pairs = samples * 5 // 4
    while True:  # until its train split has a size as `draw_schedule` wants it, or more
        build_steering_directory(directory, pairs=pairs, embedding_dim=4)
        data = JASPERSteeringDataset(directory, "train")
        if len(data) >= samples and len(data) % 5 in (0, 3, 4):
            return Counter(data.pair_relevance[data._rows].tolist())
        pairs += 1


def run_schedules(commands, folder, numbers):
    schedules = [draw_schedule(number) for number in numbers]
    file = folder / "schedules.json"
    everything = [everyone(folder, schedule) for schedule in schedules]
    file.write_text(json.dumps(schedules))
    done = commands.program(folder, PROGRAM, folder, file)
    assert done.code == 0, done.err[-3000:]
    return list(zip(schedules, everything, strict=True))


def place(state):
    return (state["epoch"], state["position"]) if state else (0, 0)


def joined(room, ends):
    """Batches of all ranks and runs, each run's up to the checkpoint that the next began with."""
    for number, end in enumerate(ends):
        last = number == len(ends) - 1
        until = (EPOCHS, 0) if last else place(end["checkpoint"] and end["checkpoint"]["state"])
        for diary in sorted(room.glob(f"diary-{number}-*.jsonl")):
            for line in diary.read_text().splitlines():
                epoch, position, ids = json.loads(line)
                if (epoch, position) <= until:
                    yield epoch - (position == 0), ids


def check(folder, schedule, everything):
    room = folder / schedule["name"]
    ends = json.loads((room / "ends.json").read_text())
    for run, end in zip(schedule["runs"], ends, strict=True):
        killed = run.get("killed")
        assert [code == -9 for code in end["codes"]] == [
            killed is not None and rank == killed[0] for rank in range(run["world"])
        ]
        assert killed is not None or end["codes"] == [0] * run["world"]
    seen = [Counter(), Counter()]
    for epoch, ids in joined(room, ends):
        seen[epoch].update(ids)
    assert seen == [everything] * EPOCHS
    return [place(end["checkpoint"] and end["checkpoint"]["state"]) for end in ends]


def test_what_three_runs_on_4_2_and_3_ranks_saw_is_every_sample_once(commands, tmp_path):
    for schedule, everything in run_schedules(commands, tmp_path, (1, 2, 9)):
        places = check(tmp_path, schedule, everything)
        assert places[0] <= places[1] > (0, 0)
        room = tmp_path / schedule["name"]  # the count can fail
        diary = room / "diary-2-0.jsonl"
        diary.write_text(diary.read_text().split("\n", 1)[1])
        with pytest.raises(AssertionError):
            check(tmp_path, schedule, everything)


@pytest.mark.proof
@pytest.mark.parametrize("first", range(3, 23, 5))
def test_twenty_random_schedules(commands, tmp_path, first):
    for schedule, everything in run_schedules(commands, tmp_path, range(first, first + 5)):
        check(tmp_path, schedule, everything)
