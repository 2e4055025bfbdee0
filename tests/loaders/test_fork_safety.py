"""Worker processes beside live reader threads: a safe start method, or a sentence."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from penstock.domains.recording.chunk_loader import RandomChunkLoader
from penstock.errors import PlanError, WorkerError
from penstock.loaders import ChunkedDataLoader, workers
from penstock.loaders.stream import StreamLoader
from penstock.loaders.worker_errors import safe_context


class Squares(Dataset):
    """Samples that go to workers."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(index * index)


@pytest.fixture
def reading():
    """A stream whose reader threads run."""
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
    with pytest.raises(PlanError, match=r"'fork' while reader threads run .*penstock-read-0"):
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


class Standstill:
    """Children stand still inside of ``fork``, as many as there are files in a folder."""

    def __init__(self, folder, count):
        self.files = [folder / f"{i}" for i in range(count)]
        for file in self.files:
            file.touch()
        self.parent = os.getpid()
        os.register_at_fork(after_in_child=self.stand_still)  # for ever: who is done, forgets

    def forget(self):
        self.files = []

    def stand_still(self):
        if os.getppid() == self.parent:
            for file in self.files:
                with suppress(FileNotFoundError):
                    file.unlink()
                    time.sleep(300)


@pytest.fixture
def standstill(tmp_path):
    made = []

    def make(count):
        made.append(Standstill(tmp_path, count))
        return made[-1]

    yield make
    for each in made:
        each.forget()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(workers, "BEGIN_SECONDS", 0.5)
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_that_stand_still_in_fork_are_started_again_and_nothing_is_lost(
    standstill, impatient, caplog, persistent
):
    halt = standstill(1)
    loader = ChunkedDataLoader(
        Squares(), 8, 4, shuffle=False, num_workers=2, persistent_workers=persistent
    )
    with loader:
        came = torch.cat([batch for _ in range(4) for batch in loader]).tolist()
    assert came == [i * i for i in range(64)] * 2
    assert caplog.text.count("was stuck as it was forked: all are started again") == 1
    assert not halt.files[0].exists()
    assert not multiprocessing.active_children()


def test_workers_that_always_stand_still_are_given_up_with_what_to_do(standstill, impatient):
    standstill(3)
    with ChunkedDataLoader(Squares(), 8, num_workers=1) as loader:
        with pytest.raises(WorkerError, match=r"3 times: use multiprocessing_context='forkserver'"):
            next(iter(loader))
        assert not multiprocessing.active_children()
        assert next(iter(loader)).tolist() == [i * i for i in range(8)]


class OneAtATime:
    """Counts the threads inside of ``fork``, and lets others run meanwhile."""

    def __init__(self):
        self.inside, self.most, self.counts = 0, 0, True
        os.register_at_fork(before=self.enter, after_in_parent=self.leave)

    def enter(self):
        if self.counts:
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(0.01)  # without the interpreter's lock

    def leave(self):
        self.inside -= 1


@pytest.fixture
def forks():
    counted = OneAtATime()
    yield counted
    counted.counts = False


def test_loaders_that_begin_at_once_wait_for_their_own_workers_only(impatient, caplog, forks):
    """Processes of another thread's loader are not its own, and one thread forks at a time."""
    loaders = [ChunkedDataLoader(Squares(), 8, num_workers=2) for _ in range(3)]
    with ExitStack() as closing, ThreadPoolExecutor(len(loaders)) as threads:
        for loader in loaders:
            closing.enter_context(loader)
        batches = list(threads.map(lambda loader: next(iter(loader)), loaders))
        workers = [{p.pid for p in loader._workers.processes} for loader in loaders]
    assert [len(each) for each in workers] == [2, 2, 2] and len(set.union(*workers)) == 6
    assert all(torch.equal(batch, batches[0]) for batch in batches)
    assert "stuck" not in caplog.text
    assert forks.most == 1
