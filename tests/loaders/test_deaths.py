"""A worker that dies or raises: said within seconds, with its name; the state continues there."""

import multiprocessing
import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader, WorkerError

# torch's signal handler raises in the midst of whatever runs: also where nobody can catch it, in a
# destructor or a callback of the garbage collector; what the loop then gets is tested all the same
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TORCHS = r"worker \(pid \d+\) (is killed by signal|exited unexpectedly)"


class Deadly(Dataset):
    """Sample 21 ends the worker that reads it, as long as the file is there."""

    def __init__(self, trap: Path, how: str):
        self.trap, self.how = trap, how

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 21 and self.trap.exists():
            if self.how == "exit":
                os._exit(3)
            if self.how == "leave":
                os._exit(0)
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "two arguments":
                raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "sample 21 is broken")
            raise {"raise": ValueError, "key": KeyError, "os": OSError}[self.how]("sample 21 broke")
        return index


@pytest.fixture
def trap(tmp_path):
    trap = tmp_path / "trap"
    trap.touch()
    return trap


def run(loader):
    """What is delivered until the error, and the error."""
    came = []
    try:
        for batch in loader:
            came += batch.tolist()
    except Exception as error:  # noqa: BLE001
        return came, error
    return came, None


def check_goes_on(loader, trap, came):
    """The state is at the last batch delivered, and the loader can be iterated again."""
    state = loader.state_dict()
    assert state["position"] == len(came)
    trap.unlink()
    with loader:
        rest = torch.cat(list(loader)).tolist()
    assert came + rest == list(range(64))


@pytest.mark.parametrize("chunk", [16, None])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", r"worker process \d+ exited with code 3: the position is at the last batch"),
        ("leave", r"worker process \d+ exited with code 0"),
        ("kill", r"worker process \d+ was killed by SIGKILL \(out of memory\?\)"),
    ],
)
def test_a_worker_that_dies_is_named_and_nothing_hangs(trap, how, words, chunk):
    loader = ChunkedDataLoader(Deadly(trap, how), 4, chunk, shuffle=False, num_workers=2)
    begin = time.monotonic()
    came, error = run(loader)
    assert time.monotonic() - begin < 20
    if isinstance(error, WorkerError):
        assert re.search(words, str(error))
        assert error.__cause__ is not None
        assert not multiprocessing.active_children()  # though the error is still held
    else:  # torch's signal handler was first, in the midst of the loop's body
        assert isinstance(error, RuntimeError) and re.search(TORCHS, str(error))
    assert came == list(range(len(came))) and len(came) <= 20
    if chunk is None:  # an epoch that was left is over, unless its state is loaded
        loader.load_state_dict(loader.state_dict())
    check_goes_on(loader, trap, came)


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.proof)])
def test_a_worker_killed_under_another_start_method_is_named_too(trap, method):
    options = {"shuffle": False, "num_workers": 2, "multiprocessing_context": method}
    loader = ChunkedDataLoader(Deadly(trap, "kill"), 4, 16, **options)
    came, error = run(loader)
    assert isinstance(error, RuntimeError) and re.search(f"SIGKILL|{TORCHS}", str(error))
    loader.close()
    assert len(came) <= 20 and loader.state_dict()["position"] == len(came)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.proof)]
)
def test_what_asks_a_job_to_end_is_for_whoever_iterates_and_not_for_workers(method, tmp_path):
    options = {"shuffle": False, "num_workers": 2, "multiprocessing_context": method}
    with ChunkedDataLoader(Deadly(tmp_path / "none", "kill"), 4, 16, **options) as loader:
        batches = iter(loader)
        came = next(batches).tolist()  # both workers have begun
        came += next(batches).tolist()
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            for worker in multiprocessing.active_children():
                os.kill(worker.pid, number)
            came += next(batches).tolist()
        came += torch.cat(list(batches)).tolist()
        begin = time.monotonic()
    assert came == list(range(64))
    assert time.monotonic() - begin < 5  # they were ended, and not waited for


class Stuck(Dataset):
    """Sample 9 takes for ever, and holds no signal back."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 9:
            time.sleep(1000)
        return index


@pytest.mark.proof  # torch waits ten seconds for it
def test_a_worker_that_hangs_is_ended_with_its_loader():
    with ChunkedDataLoader(Stuck(), 4, 16, shuffle=False, num_workers=2) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("how", "kind"), [("raise", ValueError), ("key", KeyError), ("os", OSError)]
)
def test_an_error_in_a_worker_arrives_as_itself_with_its_traceback(trap, how, kind):
    loader = ChunkedDataLoader(Deadly(trap, how), 4, 16, shuffle=False, num_workers=2)
    came, error = run(loader)
    assert type(error) is kind or isinstance(error, kind)
    assert "DataLoader worker process 1" in str(error)  # the sixth batch is the second worker's
    assert "sample 21 broke" in str(error) and "__getitem__" in str(error)
    assert came == list(range(20))
    workers = {child.pid for child in multiprocessing.active_children()}
    assert len(workers) == 2  # as torch's, they outlive an error of the dataset
    check_goes_on(loader, trap, came)
    assert not multiprocessing.active_children()


def test_an_error_that_cannot_be_rebuilt_still_arrives(trap):
    loader = ChunkedDataLoader(Deadly(trap, "two arguments"), 4, 16, shuffle=False, num_workers=2)
    came, error = run(loader)
    assert isinstance(error, RuntimeError) and "sample 21 is broken" in str(error)
    check_goes_on(loader, trap, came)


def test_an_error_inline_arrives_as_itself(trap):
    loader = ChunkedDataLoader(Deadly(trap, "raise"), 4, 16, shuffle=False)
    came, error = run(loader)
    assert type(error) is ValueError and str(error) == "sample 21 broke"
    check_goes_on(loader, trap, came)


def test_a_persistent_worker_killed_between_two_chunks_is_named():
    loader = ChunkedDataLoader(torch.arange(64), 4, 4, shuffle=False, num_workers=2)
    came = torch.cat(list(loader)).tolist()
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGKILL)
    more, error = [], None
    while error is None and len(came) + len(more) < 64:  # what was read ahead may still come
        batches, error = run(loader)
        more += batches
    assert isinstance(error, RuntimeError) and "killed by" in str(error)
    with loader:
        loader.load_state_dict(loader.state_dict())
        rest = []
        while loader.state_dict()["epoch"] == 0:
            rest += torch.cat(list(loader)).tolist()
    assert came + more + rest == list(range(64))
