"""Real process groups of 1, 2, 3 and 4 ranks: the same run, however many take part in it."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import zarr

from penstock.atomic_files import read_entries
from penstock.domains.steering import JASPERSteeringDataset, build_steering_directory
from tests.distributed.ranks_program import BAD, EPOCHS, GLOBAL_BATCH, SAMPLES

PROGRAM = Path(__file__).with_name("ranks_program.py")
WORLDS = (1, 2, 3, 4)
KINDS = (("chunked", 0), ("chunked", 2), ("steering", 0), ("steering", 2), ("stream", 0))
CASES = [
    f"{name}, {workers} workers, drop_last={drop_last}"
    for name, workers in KINDS
    for drop_last in (False, True)
]


@pytest.fixture(scope="module")
def folder(commands, tmp_path_factory):
    """The data, and what every rank of every world wrote down of it."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, first in (("numbers", 0), ("other", 1)):
        numbers = np.arange(first, first + SAMPLES)
        zarr.create_array(folder / f"{name}.zarr", data=numbers, chunks=(8,))
    build_steering_directory(folder / "steering", pairs=130, embedding_dim=8)
    build_steering_directory(folder / "steering-other", pairs=130, embedding_dim=8, seed=43)
    done = commands.program(folder, PROGRAM, folder)
    assert done.code == 0, done.err
    assert done.out.count("exit codes [0") == len(WORLDS), done.out + done.err
    return folder


@pytest.fixture(scope="module")
def worlds(folder):
    """By world, a list of what each rank wrote down."""
    return {
        world: [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]
        for world in WORLDS
    }


def joined(ranks):
    """Global batches: what all ranks got at a step, in the order of ranks."""
    return [list(chain(*parts)) for parts in zip(*ranks, strict=True)]


def keys(batch):
    return [tuple(sample) if isinstance(sample, list) else sample for sample in batch]


def steps_of(worlds, world, part, case, epoch):
    return [keys(step) for step in joined([rank[part][case][epoch] for rank in worlds[world]])]


def everyone(case, folder):
    """What an epoch has to deliver, without the variants of steering."""
    if not case.startswith("steering"):
        return Counter(range(SAMPLES))
    data = JASPERSteeringDataset(folder / "steering", "train")
    return Counter(data.pair_relevance[data._rows].tolist())


@pytest.mark.parametrize("case", CASES)
def test_every_split_of_a_global_batch_gives_the_same_global_batches(worlds, case):
    for epoch in range(EPOCHS):
        control = steps_of(worlds, 1, "train", case, epoch)
        whole = [step for step in control if len(step) == GLOBAL_BATCH][:-1]
        assert len(whole) >= 6
        for world in WORLDS[1:]:
            steps = steps_of(worlds, world, "train", case, epoch)
            assert steps[: len(whole)] == whole
            rest = chain(*steps[len(whole) :])
            assert Counter(rest) == Counter(chain(*control[len(whole) :]))


@pytest.mark.parametrize("case", CASES)
def test_each_sample_comes_once_an_epoch_and_epochs_differ(worlds, folder, case):
    everything = everyone(case, folder)
    for world in WORLDS:
        orders = []
        for epoch in range(EPOCHS):
            steps = steps_of(worlds, world, "train", case, epoch)
            ids = [s[0] if isinstance(s, tuple) else s for s in chain(*steps)]
            seen = Counter(ids)
            dropped = everything.total() % GLOBAL_BATCH if case.endswith("True") else 0
            assert max(seen.values()) == 1 and not seen - everything
            assert (everything - seen).total() == dropped
            orders.append(ids)
        assert orders[0] != orders[1]


@pytest.mark.parametrize("case", CASES)
def test_ranks_have_equal_steps_and_no_empty_batch(worlds, case):
    for world in WORLDS:
        for epoch in range(EPOCHS):
            batches = [rank["train"][case][epoch] for rank in worlds[world]]
            assert len({len(mine) for mine in batches}) == 1
            assert all(chain(*batches))


def test_workers_change_nothing(worlds):
    for world in WORLDS:
        for rank in worlds[world]:
            for case in CASES:
                without = case.replace("2 workers", "0 workers")
                assert rank["train"][case] == rank["train"][without]


def test_evaluation_counts_are_exact_and_sums_are_to_rounding(worlds, folder):
    held = JASPERSteeringDataset(folder / "steering", "val")
    sizes = {"chunked": SAMPLES, "stream": SAMPLES, "steering": len(held)}
    single = worlds[1][0]["val"]
    assert len(single) == 5
    for case, alone in single.items():
        assert alone["sums"][0] == sizes[case.split(",")[0]] and 0 < alone["sums"][1]
        for world in WORLDS[1:]:
            for rank in worlds[world]:
                assert rank["val"][case]["sums"] == alone["sums"]
                assert rank["val"][case]["loss"] == pytest.approx(alone["loss"], rel=1e-5)
            assert len({rank["val"][case]["steps"] for rank in worlds[world]}) == 1


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("seed", "seed is 42 on rank{s} {most} but 7 on rank {odd}"),
        ("batch size", "batch_size is 4 on rank{s} {most} but 5 on rank {odd}"),
        ("directory", "fingerprint is "),
        ("missing", "rank {odd} has no loader (InvalidDataError: Dataset directory not found"),
        ("stream", "fingerprint is "),
        ("chunk", "chunk_size is 4 on rank{s} {most} but 5 on rank {odd}"),
    ],
)
def test_mixed_ranks_are_refused_on_all_of_them_within_seconds(worlds, what, message):
    for world in WORLDS[1:]:
        most, s = ", ".join(map(str, range(world - 1))), "s" if world > 2 else ""
        message_here = message.format(s=s, most=most, odd=world - 1)
        for number, rank in enumerate(worlds[world]):
            said, seconds = rank["refused"][what]
            own = what == "missing" and number == world - 1  # which says it in its own words
            assert (message_here if not own else "Dataset directory not found") in said
            assert own or said.startswith("the ranks would not train on the same data: ")
            assert seconds < 10


@pytest.mark.parametrize("case", ["0 workers", "2 workers", "stream"])
def test_what_one_rank_cannot_read_is_replaced_and_every_rank_keeps_its_steps(worlds, folder, case):
    if case == "stream":  # a block is replaced as a whole, and listed by the first who reads it
        bad = {number for each in BAD for number in range(each // 4 * 4, each // 4 * 4 + 4)}
        listed = {(None, each // 4 * 4): f"SourceError: sample {each} is damaged" for each in BAD}
    else:
        bad = set(BAD)
        every = [(epoch, each) for epoch in range(EPOCHS) for each in BAD]
        listed = {(epoch, each): f"OSError: sample {each} is damaged" for epoch, each in every}
    control = [steps_of(worlds, 1, "skip", case, epoch) for epoch in range(EPOCHS)]
    for world in WORLDS:
        batches = [rank["skip"][case] for rank in worlds[world]]
        for epoch in range(EPOCHS):
            assert len({len(mine[epoch]) for mine in batches}) == 1
            ids = list(chain(*steps_of(worlds, world, "skip", case, epoch)))
            assert len(ids) == SAMPLES and not bad & set(ids)
            assert Counter(ids) == Counter(chain(*control[epoch]))  # replaced alike
        entries = read_entries(folder / f"quarantine-{world}-{case.removesuffix(' workers')}.jsonl")
        # a worker that is started again reads, and lists, the same sample once more
        epochs = [None if case == "stream" else entry["epoch"] for entry in entries]
        keys = zip(epochs, (entry["sample"] for entry in entries), strict=True)
        assert dict(zip(keys, (entry["error"] for entry in entries), strict=True)) == listed


def test_tensor_parallel_peers_of_a_mesh_get_equal_batches(worlds):
    ranks = [rank["mesh"] for rank in worlds[4]]
    assert [rank["dp"][:2] for rank in ranks] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    batches = [rank["dp"][2][0] for rank in ranks]
    assert batches[0] == batches[1] != batches[2] == batches[3]
    assert sorted(chain(*batches[0], *batches[2])) == list(range(40))
    assert [rank["dp x tp"][:2] for rank in ranks] == [[rank, 4] for rank in range(4)]
    parts = [rank["dp x tp"][2][0] for rank in ranks]
    assert sorted(chain(*chain(*parts))) == list(range(40))
