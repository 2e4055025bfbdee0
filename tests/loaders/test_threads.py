"""Threads deliver what is read inline, as many at once as were asked for."""

import threading

import pytest
import torch
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader, sample_generator
from penstock.errors import PlanError
from penstock.testing import same_batch


class Noisy(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, index):
        return index, torch.randn(3, generator=sample_generator(index, "noise"))


class Meeting(Dataset):
    """Gives a sample only when enough of them are being read at once."""

    def __init__(self, parties):
        self.barrier = threading.Barrier(parties, timeout=20)

    def __len__(self):
        return 2 * self.barrier.parties

    def __getitem__(self, index):
        self.barrier.wait()
        return index


class Failing(Noisy):
    def __getitem__(self, index):
        if index == 11:
            raise KeyError("sample 11")
        return super().__getitem__(index)


@pytest.mark.parametrize("threads", [None, 1, 5])
def test_any_number_of_threads_delivers_what_is_read_inline(threads):
    def epochs(**options):
        with ChunkedDataLoader(Noisy(), 4, chunk_size=4, **options) as loader:
            return [batch for _ in range(5) for batch in loader]

    assert same_batch(epochs(executor="threads", threads=threads), epochs())


def test_so_many_batches_are_read_at_once():
    meeting = Meeting(5)
    with ChunkedDataLoader(meeting, 1, executor="threads", threads=5) as loader:
        assert sorted(int(i) for batch in loader for i in batch) == list(range(10))
        meeting.barrier.abort()  # some read ahead already, and wait for others


def test_a_state_tells_what_was_delivered_not_what_was_read():
    with ChunkedDataLoader(Noisy(), 4, chunk_size=6, executor="threads", threads=3) as loader:
        next(iter(loader))
        assert loader.state_dict()["position"] == 4


def test_what_a_dataset_raises_arrives_as_itself():
    with ChunkedDataLoader(Failing(), 4, executor="threads") as loader:
        with pytest.raises(KeyError, match="sample 11"):
            list(loader)


@pytest.mark.parametrize("options", [{"threads": 2}, {"executor": "threads", "threads": 0}])
def test_threads_where_none_read_are_refused(options):
    with pytest.raises(PlanError, match="threads"):
        ChunkedDataLoader(Noisy(), 4, **options)
