"""Streams on two real ranks, with and without workers: each sample once, resumed exactly."""

import json
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from penstock import PlanError, ReplayLoader
from tests.distributed.process_groups import run_ranks

SAMPLES, FILES = 44, 4
CASES = [
    f"{name}, {workers} workers" for name in ("json", "parquet", "torch") for workers in (0, 2)
]


class Shared(IterableDataset):
    """Split over ranks and workers, with a state of its own."""

    sharded, place = True, 0

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        mine = range(dist.get_rank() * workers + worker, SAMPLES, dist.get_world_size() * workers)
        while self.place < len(mine):
            self.place += 1
            yield {"i": mine[self.place - 1]}

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Whole(IterableDataset):
    def __iter__(self):
        return iter(range(SAMPLES))


def stream_of(kind, folder):
    if kind == "torch":
        return Shared()
    files = sorted(map(str, folder.glob(f"*.{kind}")))
    assert len(files) == FILES
    return datasets.load_dataset(kind, data_files=files, split="train", streaming=True)


def write_files(folder):
    for number in range(FILES):
        rows = [{"i": i} for i in range(number, SAMPLES, FILES)]
        (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / f"{number}.parquet")


def values(batches):
    return [batch["i"].tolist() for batch in batches]


def rank_of_two(rank, world, folder):
    """Write down an epoch, the next, and what comes after a resume at every batch."""
    found = {}
    for case in CASES:
        kind, workers = case.split(", ")[0], int(case.split()[1])
        make = partial(ReplayLoader, stream_of(kind, folder), 3, num_workers=workers, seed=1)
        with_whole = make()
        whole = [values(with_whole), values(with_whole)]
        resumes, uses_own = [], []
        for done in range(1, 4 if workers else len(whole[0])):
            for of_rank_0 in (False, True):
                first, second = make(), make()
                seen = values(islice(first, done))
                states = [json.loads(json.dumps(first.state_dict()))]
                first.close()
                if of_rank_0:
                    dist.broadcast_object_list(states)
                second.load_state_dict(states[0])
                uses_own.append(states[0]["dataset"]["rank"] == rank)
                resumes.append(seen + values(second) == whole[0])
        found[case] = [whole, resumes, uses_own]
    try:
        values(ReplayLoader(Whole(), 3))
    except PlanError as error:
        found["refused"] = str(error)
    (folder / f"rank-{rank}").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def ranks(commands, tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    write_files(folder)
    done = commands.program(folder, __file__, folder)
    assert done.code == 0, done.err[-3000:]
    return [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_every_sample_comes_once_an_epoch_over_ranks_and_workers(ranks, case):
    for epoch in range(2):
        ids = [i for rank in ranks for batch in rank[case][0][epoch] for i in batch]
        assert sorted(ids) == list(range(SAMPLES))
    assert all(rank[case][0][0] for rank in ranks)


@pytest.mark.parametrize("case", CASES)
def test_a_resume_is_exact_by_the_ranks_own_state_and_by_that_of_rank_0(ranks, case):
    for number, rank in enumerate(ranks):
        _, resumes, uses_own = rank[case]
        assert len(resumes) >= 6 and all(resumes)
        assert uses_own == [True, number == 0] * (len(resumes) // 2)


def test_a_stream_that_every_rank_would_read_as_a_whole_is_refused(ranks):
    assert all("2 ranks would deliver every sample 2 times" in rank["refused"] for rank in ranks)


if __name__ == "__main__":
    datasets.disable_progress_bars()
    sys.exit(max(run_ranks(2, rank_of_two, Path(sys.argv[1]))))
