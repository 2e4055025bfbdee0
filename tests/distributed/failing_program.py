"""One rank fails in the middle; every rank writes down how it ended: started by tests.

python -m tests.distributed.failing_program FOLDER
"""

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader, ReplacingDataset, SourceError, StreamLoader
from penstock.distributed import together
from penstock.testing import WatchedSource
from tests.distributed.process_groups import run_ranks

WORLD, FAILS_AT = 3, 3


class NoMoreError(Exception):
    """What the failing rank dies of."""


def train(rank, failing, fail):
    for step, batch in enumerate(ChunkedDataLoader(torch.arange(90), 3)):
        if rank == failing and step == FAILS_AT:
            fail()
        dist.all_reduce(batch)


def raises():
    raise NoMoreError("the 7th tap\nis dry")


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def fails(rank, world, folder, name, failing, fail):
    ended(rank, folder, name, lambda: train(rank, failing, fail))


def damaged(start, stop):
    if start <= 40 < stop:
        raise SourceError("sample 40 is damaged")


def reads_a_bad_block(rank, world, folder):
    """The rank whose block is damaged raises, as `on_error="raise"` does."""

    def run():
        source = WatchedSource(np.arange(90), damaged, block_samples=5)
        with StreamLoader(source, 3, lanes=world, seed=1) as loader:
            for batch in loader:
                dist.all_reduce(batch)

    ended(rank, folder, f"block-{world}", run)


def reads_a_bad_sample(rank, world, folder):
    """The same of a map-style dataset."""

    class Damaged(Dataset):
        def __len__(self):
            return 90

        def __getitem__(self, index):
            damaged(index, index + 1)
            return torch.tensor(index)

    def run():
        for batch in ChunkedDataLoader(ReplacingDataset(Damaged(), on_error="raise"), 3):
            dist.all_reduce(batch)

    ended(rank, folder, f"sample-{world}", run)


def stuck(rank, world, folder):
    """Rank 1 fails and lives on; rank 2 waits for what no closed connection can end."""

    def run():
        if rank == 1:
            raises()
        threading.Event().wait() if rank == 2 else dist.all_reduce(torch.ones(1))

    ended(rank, folder, "stuck", run, grace_seconds=1.0, then=until_rank_0_is_gone)


def until_rank_0_is_gone():
    with suppress(RuntimeError):
        dist.recv(torch.ones(1), src=0)


def ended(rank, folder, name, run, then=lambda: None, **options):
    begin = time.monotonic()
    try:
        with together(**options):
            run()
    except (RuntimeError, NoMoreError, SourceError) as error:
        found = [type(error).__name__, str(error), time.monotonic() - begin]
        (folder / f"{name}-{rank}.json").write_text(json.dumps(found))
        then()
        os._exit(3)


def all_is_well(rank, world, folder):
    for _ in range(3):
        with together():
            (folder / f"in-{rank}").touch()
            train(rank, None, raises)
        assert all((folder / f"in-{other}").exists() for other in range(world))
        dist.barrier()
        (folder / f"in-{rank}").unlink()
        dist.barrier()
    assert not [t for t in threading.enumerate() if t.name.startswith("penstock-")]


def done_early(rank, world, folder):
    """Rank 2 fails when the others are done already, and wait for it."""
    ended(rank, folder, "early", raises if rank == 2 else lambda: None)


if __name__ == "__main__":
    room = Path(sys.argv[1])
    codes = {
        "raises": run_ranks(WORLD, fails, room, "raises", 1, raises),
        "keeper": run_ranks(WORLD, fails, room, "keeper", 0, raises),
        "killed": run_ranks(WORLD, fails, room, "killed", 2, is_killed),
        "block-2": run_ranks(2, reads_a_bad_block, room),
        "block-3": run_ranks(3, reads_a_bad_block, room),
        "sample-2": run_ranks(2, reads_a_bad_sample, room),
        "sample-3": run_ranks(3, reads_a_bad_sample, room),
        "stuck": run_ranks(WORLD, stuck, room),
        "early": run_ranks(WORLD, done_early, room),
        "well": run_ranks(WORLD, all_is_well, room),
    }
    (room / "codes.json").write_text(json.dumps(codes))
