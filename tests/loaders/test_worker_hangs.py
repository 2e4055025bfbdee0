"""A worker process that hangs: named by ``timeout=`` or in the log, and ended by ``close()``."""

import logging
import multiprocessing
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader, WorkerError
from penstock.loaders import worker_errors
from penstock.loaders.workers import END_SECONDS

ENOUGH_SECONDS = 60  # for anything bounded, on a busy machine
LARGE = 1 << 17  # elements: such a batch goes through shared memory, exchanged by messages
# In the sixth batch of two workers, which is requested when the second one was received. A worker
# that stops earlier may hold the lock of the queue, and then no batch arrives at all.
TRAPPED = 20


def lock_up():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


WAYS = {"locked": lock_up, "stopped": stop, "asleep": lambda: time.sleep(1000)}


class Hanging(Dataset):
    """Reading one sample hangs, as long as a file exists; another file says that it does."""

    def __init__(self, trap, how, size=1):
        self.trap, self.how, self.size = trap, how, size

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == TRAPPED and self.trap.exists():
            entered(self.trap).touch()
            WAYS[self.how]()
        return torch.full((self.size,), index)


def entered(trap):
    return trap.with_suffix(".entered")


def wait_until_one_hangs(trap):
    deadline = time.monotonic() + ENOUGH_SECONDS
    while not entered(trap).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class HangsInCollate:
    """Collating one sample hangs."""

    def __init__(self, trap):
        self.trap = trap

    def __call__(self, samples):
        if any(int(sample[0]) == TRAPPED for sample in samples) and self.trap.exists():
            lock_up()
        return torch.stack(samples)


@pytest.fixture
def trap(tmp_path):
    trap = tmp_path / "trap"
    trap.touch()
    return trap


def first_of(batch):
    return batch[:, 0].tolist()


@pytest.mark.parametrize(
    ("how", "state", "size", "options"),
    [
        ("locked", "sleeping", 1, {}),
        ("stopped", "stopped", LARGE, {}),
        ("asleep", "sleeping", 1, {"persistent_workers": False}),
        ("collate", "sleeping", 1, {}),
        ("stopped", "stopped", LARGE, {"multiprocessing_context": "forkserver"}),
        *(
            pytest.param(*case, marks=pytest.mark.proof)
            for case in (
                ("locked", "sleeping", LARGE, {}),
                ("stopped", "stopped", 1, {}),
                ("stopped", "stopped", 1, {"multiprocessing_context": "spawn"}),
            )
        ),
    ],
)
def test_a_timeout_names_the_worker_what_it_reads_and_its_state(trap, how, state, size, options):
    dataset = Hanging(trap, "locked" if how == "collate" else how, size)
    if how == "collate":
        dataset.how, options = "never", {**options, "collate_fn": HangsInCollate(trap)}
        dataset.trap = Path("nowhere")
    loader = ChunkedDataLoader(dataset, 4, 16, shuffle=False, num_workers=2, timeout=60, **options)
    came, begin = [], time.monotonic()
    with pytest.raises(WorkerError) as caught:
        for batch in loader:
            came += first_of(batch)
            loader._workers._timeout = 1  # not before: a start may take long here
    assert time.monotonic() - begin < 60 + ENOUGH_SECONDS
    assert not multiprocessing.active_children()
    words = str(caught.value)
    assert re.match(r"waited 1 s \(timeout\) for worker process \d+ \(", words)
    assert f"({state})" in words or "is stopped" in words
    next_ones = list(range(len(came), len(came) + 4))  # a stopped worker has not sent all it read
    assert f"to deliver samples {next_ones}".replace(" ", "") in words.replace(" ", "")
    assert came == list(range(len(came))) and len(came) <= TRAPPED
    assert "iterate again to continue there" in words
    trap.unlink()  # what the message advises
    with loader:
        loader.load_state_dict(loader.state_dict())
        came += [i for batch in loader for i in first_of(batch)]
    assert came == list(range(64))


class StopsAsItArrives:
    """What follows it in a message to a worker is not read, as long as a file is there."""

    def __init__(self, trap):
        self.trap = trap

    def __reduce__(self):
        return _arrive_and_stop, (self.trap,)


def _arrive_and_stop(trap):
    if trap.exists():
        stop()
    return StopsAsItArrives(trap)


class StopsAtStart(Hanging):
    """A worker is stopped as it starts, with most of the dataset still to be sent."""

    def __init__(self, trap):
        super().__init__(trap, "never")
        self.trap = Path("nowhere")
        self.stops, self.large = StopsAsItArrives(trap), bytes(1 << 20)


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.proof)])
def test_a_worker_stopped_as_it_starts_is_named_and_ended(trap, method):
    loader = ChunkedDataLoader(
        StopsAtStart(trap), 4, 16, num_workers=2, timeout=2, multiprocessing_context=method
    )
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"still starting\) to deliver samples"):
        next(iter(loader))
    assert time.monotonic() - begin < ENOUGH_SECONDS
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "how", ["locked", "stopped", pytest.param("asleep", marks=pytest.mark.proof)]
)
def test_close_ends_workers_that_hang(trap, how):
    loader = ChunkedDataLoader(Hanging(trap, how), 4, 16, shuffle=False, num_workers=2)
    batches = iter(loader)
    assert [first_of(next(batches)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    wait_until_one_hangs(trap)
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < END_SECONDS + 20  # torch takes ten for each
    assert not multiprocessing.active_children()


def test_workers_that_hang_in_a_batch_no_longer_needed_are_replaced(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("penstock.loaders.executors.END_SECONDS", 1.0)
    with ChunkedDataLoader(
        Hanging(tmp_path / "no trap", "never"), 4, 16, shuffle=False, num_workers=2
    ) as loader:
        batches = iter(loader)
        assert first_of(next(batches)) == [0, 1, 2, 3]
        before = {process.pid for process in multiprocessing.active_children()}
        for pid in before:
            os.kill(pid, signal.SIGSTOP)
        loader.seek(0, 3)
        assert first_of(next(iter(loader))) == [12, 13, 14, 15]
        assert not before & {process.pid for process in multiprocessing.active_children()}
    assert "with a batch that is no longer needed: all are started again" in caplog.text


def test_a_long_wait_is_logged_and_goes_on(trap, monkeypatch, caplog):
    monkeypatch.setattr(worker_errors, "REPORT_SECONDS", 0.5)
    monkeypatch.setattr(worker_errors, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr("penstock.loaders.executors.LOOK_SECONDS", 0.1)
    dataset = Hanging(trap, "stopped")
    said = []

    class Continues(logging.Handler):
        def emit(self, record):
            stopped = re.search(r"for worker process (\d+) \(stopped\)", record.getMessage())
            if stopped:
                said.append(record.getMessage())
            if len(said) == 2:
                os.kill(int(stopped.group(1)), signal.SIGCONT)

    handler = Continues(logging.WARNING)
    logging.getLogger("penstock").addHandler(handler)
    try:
        with ChunkedDataLoader(dataset, 4, 16, shuffle=False, num_workers=2) as loader:
            came = [i for batch in loader for i in first_of(batch)]
    finally:
        logging.getLogger("penstock").removeHandler(handler)
    assert came == list(range(64))
    assert len(said) == 2  # twice as long after the first
    for line in said:
        assert line.startswith("waited ") and "to deliver samples [" in line
