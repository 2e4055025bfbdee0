"""The verdict names the cause of waiting, its share, and the setting to change."""

import json
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock import ChunkedDataLoader, MemorySource, ReplayLoader, StreamLoader
from penstock.metrics import Histogram, Snapshot, merge, verdict_of
from penstock.metrics.recorder import COLUMNS, STEP, WAIT
from tests.attempts import attempts

STREAM = {"memory_budget": 256_000_000, "threads": 2, "block_samples": 300, "chunk_rows": 100}
WORKERS = {"executor": "workers", "num_workers": 2}


def run(wait, step, *, behind=None, inside=None, batches=100, first=0.0, **more):
    """The snapshot of a run: seconds waited and trained, and those of the stages."""
    stages = {name: Histogram([seconds]) for name, seconds in (behind or {}).items()}
    for name, seconds in (inside or {}).items():
        stages[name] = stages.get(name, Histogram()) + Histogram([seconds])
    stages["wait"] = Histogram([wait / batches] * batches) + Histogram([first] if first else [])
    stages["step"] = Histogram([step / batches] * batches)
    options = {"stages": stages, "inside": inside or {}, "first": first, "probed": wait + first}
    return Snapshot(**options | more)


def slots(*shares):
    """Figures over time: a row for each second, with these shares of waiting."""
    rows = [[0.0] * len(COLUMNS) for _ in shares]
    for row, share in zip(rows, shares, strict=True):
        row[WAIT], row[STEP] = share, 1 - share
    return rows


CASES = {
    "slow storage": (
        run(41, 59, behind={"read": 83, "decode": 12, "place": 5}, settings=STREAM),
        "data-bound: 41 % of the time was spent waiting, 83 % of it reading; raise memory_budget "
        "from 256 MB to 1.02 GB, or rechunk (each block spans 3 storage chunks)",
    ),
    "slow decompression": (
        run(30, 70, behind={"read": 10, "decode": 90}, settings=STREAM),
        "data-bound: 30 % of the time was spent waiting, 90 % of it decompressing; raise threads "
        "from 2 to 4, or store with a faster codec: penstock convert",
    ),
    "slow transform": (
        run(50, 50, inside={"transform": 45}, behind={"read": 3}, settings=STREAM),
        "data-bound: 50 % of the time was spent waiting, 90 % of it transforming; make transform "
        "work on whole batches, or do its work on the device",
    ),
    "slow collate": (
        run(20, 80, behind={"read": 10, "collate": 190}, settings=WORKERS),
        "data-bound: 20 % of the time was spent waiting, 95 % of it collating; raise num_workers "
        "from 2 to 4",
    ),
    "slow step": (
        run(0.4, 99.6, behind={"read": 90}, settings=STREAM),
        "compute-bound: waited 0.4 %; a faster loader would change nothing",
    ),
    "slow copy": (
        run(25, 75, inside={"transfer": 20}, behind={"read": 1}, settings=STREAM),
        "data-bound: 25 % of the time was spent waiting, 80 % of it copying to the device; send "
        "less: a smaller dtype, or the decoding of values on the device",
    ),
    "alternating": (
        run(36, 64, behind={"read": 9}, settings=WORKERS, slots=slots(*[0.9, 0.9, 0, 0, 0] * 4)),
        "data-bound at times: 36 % of the time was spent waiting (7 of 19 intervals of 1 s), "
        "100 % of it reading; raise num_workers from 2 to 4",
    ),
    "start-up only": (
        run(0.1, 49.9, behind={"read": 9}, settings=WORKERS, first=9.0),
        "start-up: the first batch took 9 s, 99 % of waiting; after it, training waited 0.2 %; use "
        "one loader for all epochs",
    ),
    "one slow rank": (
        merge(
            [run(1, 99, behind={"read": 5}, rank=rank, settings=WORKERS) for rank in (0, 1, 2)]
            + [run(60, 40, behind={"read": 200}, rank=3, settings=WORKERS)]
        ),
        "data-bound: rank 3 waited 60 % of the time, the others at most 1 %, 100 % of it reading; "
        "raise num_workers from 2 to 4",
    ),
    "one slow worker": (
        run(
            *(60, 40),
            behind={"read": 200},
            settings=WORKERS,
            workers={"worker 0": [50, 5.0], "worker 1": [50, 45.0], "worker 2": [50, 5.5]},
        ),
        "data-bound: 60 % of the time was spent waiting, 100 % of it reading; worker 1 takes 8.6 "
        "times as long as the others: look at what it reads",
    ),
    "stages that were not measured": (
        run(60, 40, probed=0.0),
        "data-bound: 60 % of the time was spent waiting; read in the background: "
        "executor='threads' for storage, num_workers=4 for Python code",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_the_share_and_the_setting_are_named(case):
    snapshot, line = CASES[case]
    assert verdict_of(snapshot) == line
    again = Snapshot.of_dict(json.loads(snapshot.json()))
    assert verdict_of(again) == line  # a pure function of what can be written
    plain = json.loads(verdict_of(snapshot).json())
    assert plain["verdict"] == line and plain["bound"] == line.split(":")[0].split("-b")[0]


def test_stalls_have_a_moment_a_rank_and_what_was_read():
    stall = {"seconds": 2.5, "at": 31.25, "rank": 3, "epoch": 1, "position": 1200}
    short = {**stall, "seconds": 0.03}
    stalls = [{**stall, "samples": [4096, 8192]}, {**short, "samples": None}]
    (line,) = verdict_of(run(1, 9, stalls=stalls)).stalls  # 0.03 s is less than a usual step
    assert line == (
        "after 31.2 s, rank 3 waited 2.50 s at epoch 1, position 1,200, reading samples 4,096 to "
        "8,192"
    )


# -- real runs, with large margins


class Sleeping(Dataset):
    """Samples that take their time, in some workers."""

    def __init__(self, seconds, workers=(0, 1)):
        self.seconds, self.workers = seconds, workers

    def __len__(self):
        return 160

    def __getitem__(self, index):
        info = get_worker_info()
        if info is None or info.id in self.workers:
            time.sleep(self.seconds)
        return torch.tensor(index)


class SlowSource(MemorySource):
    """Storage that takes its time."""

    def view(self, start, stop):
        time.sleep(0.05)
        return super().view(start, stop)


def slow_collate(samples):
    time.sleep(0.02)
    return torch.stack(samples)


def slow_numbers(samples):
    return slow_collate([torch.tensor(each) for each in samples])


def slow_transform(batch, rng):
    time.sleep(0.02)
    return batch


def figures(loader, step=0.0):
    with loader:
        for _ in loader:
            time.sleep(step)
        return loader.verdict().figures


EXECUTORS = [{}, {"executor": "threads", "threads": 2}, {"num_workers": 2}]


@pytest.mark.parametrize("options", EXECUTORS, ids=["inline", "threads", "workers"])
def test_every_executor_measures_reading_and_collating(options):
    found = figures(ChunkedDataLoader(Sleeping(0.003), 8, **options))
    assert (found.bound, found.cause) == ("data", "read")
    found = figures(ChunkedDataLoader(Sleeping(0.0), 8, collate_fn=slow_collate, **options))
    assert (found.bound, found.cause) == ("data", "collate")


@attempts(3)
def test_a_stream_measures_reading_and_transforming():
    rows = np.zeros((4000, 4), np.float32)
    slow = StreamLoader(SlowSource(rows), 100, block_samples=100, window_blocks=2, threads=1)
    found = figures(slow)
    assert (found.bound, found.cause) == ("data", "read")
    found = figures(StreamLoader(rows, 100, transform=slow_transform))
    assert (found.bound, found.cause) == ("data", "transform")
    found = figures(StreamLoader(rows, 100), step=0.02)
    assert found.bound in ("compute", "start-up")


class Streamed(IterableDataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __iter__(self):
        for index in range(160):
            time.sleep(self.seconds)
            yield index


def test_a_dataset_without_an_index_is_measured_too():
    options = {"batch_size": 8, "num_workers": 0, "seed": 1}
    loader = ReplayLoader(Streamed(0.003), collate_fn=torch.tensor, **options)
    assert len(list(loader)) == 20 and loader.snapshot().samples == 160
    assert (loader.verdict().figures.bound, loader.verdict().figures.cause) == ("data", "read")
    loader = ReplayLoader(Streamed(0.0), collate_fn=slow_numbers, **options)
    list(loader)
    assert (loader.verdict().figures.bound, loader.verdict().figures.cause) == ("data", "collate")


def test_one_slow_worker_is_named():
    with ChunkedDataLoader(Sleeping(0.01, workers=[1]), 8, num_workers=2) as loader:
        for _ in loader:
            pass
        assert "worker 1 takes" in loader.verdict()
