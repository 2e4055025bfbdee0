"""Worker processes beside live reader threads: a safe start method, or a sentence."""

import multiprocessing
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from penstock.errors import PlanError
from penstock.loaders import ChunkedDataLoader
from penstock.loaders.processes import safe_context
from penstock.loaders.stream import StreamLoader
from penstock.streaming.chunks import RandomChunkLoader


class Squares(Dataset):
    """Samples that go to workers."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(index * index)


@pytest.fixture
def reading():
    """A stream whose reader threads live."""
    with StreamLoader(np.arange(1000), 10, block_samples=10, window_blocks=5) as loader:
        next(iter(loader))
        yield loader


def test_fork_is_avoided_while_reader_threads_live(reading):
    assert safe_context(None, 2) == "forkserver"
    assert safe_context(None, 0) is None
    assert safe_context("spawn", 2) == "spawn"
    spawn = multiprocessing.get_context("spawn")
    assert safe_context(spawn, 2) is spawn


def test_fork_is_torchs_choice_again_once_they_ended(reading):
    reading.close()
    assert safe_context(None, 2) is None
    assert safe_context("fork", 2) == "fork"


@pytest.mark.parametrize("context", ["fork", multiprocessing.get_context("fork")])
def test_an_explicit_fork_is_refused_with_the_sentence(reading, context):
    loader = ChunkedDataLoader(
        Squares(), 8, chunk_size=4, num_workers=2, multiprocessing_context=context
    )
    with pytest.raises(PlanError, match=r"'fork' while reader threads live .*penstock-read-0"):
        next(iter(loader))
    loader.close()


def test_reader_threads_of_chunks_count_too():
    with RandomChunkLoader(lambda a, b: np.zeros(b - a), 100, 10, seed=1) as loader:
        loader.start_epoch(5)
        assert any(thread.name == "penstock-chunks" for thread in threading.enumerate())
        assert safe_context(None, 1) == "forkserver"


def test_workers_and_readers_live_side_by_side(reading):
    with ChunkedDataLoader(Squares(), 8, chunk_size=4, num_workers=2, seed=3) as workers:
        inline = ChunkedDataLoader(Squares(), 8, chunk_size=4, seed=3)
        for _ in range(2):
            streamed = iter(reading)
            for got, want in zip(workers, inline, strict=True):
                assert torch.equal(got, want)
                assert len(next(streamed)) == 10
