"""Reads that never return: what waits for them says so and gives up in time."""

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader, RandomChunkLoader, StreamLoader
from penstock.errors import WorkerError
from penstock.streaming import threads
from penstock.streaming.prefetch import Prefetched
from penstock.streaming.threads import BackgroundThread, start_all, stop_all
from penstock.testing import WatchedSource
from tests.cases import each_once

ARRAY = np.arange(2000)
GEOMETRY = {"block_samples": 10, "window_blocks": 5}
PATIENCE = 60.0


def our_threads():
    return [t for t in threading.enumerate() if t.name.startswith("penstock-")]


class Gate:
    """Reads hang from the ``free``-th on, until it is opened; those in ``first`` do not count."""

    def __init__(self, free):
        self.first = set()
        self.entered, self.opened, self.left = threading.Event(), threading.Event(), free
        self.lock = threading.Lock()

    def __call__(self, *place):
        with self.lock:
            self.left -= place not in self.first
            hang = self.left < 0 and place not in self.first
        if hang:
            self.entered.set()
            assert self.opened.wait(PATIENCE)

    def open(self):
        self.opened.set()
        for thread in our_threads():
            thread.join(PATIENCE)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(threads, "STOP_SECONDS", 0.3)


class Hanging(Dataset):
    def __init__(self, gate):
        self.gate = gate

    def __len__(self):
        return len(ARRAY)

    def __getitem__(self, index):
        self.gate(index)
        return int(ARRAY[index])


def stream(gate, **options):
    return StreamLoader(WatchedSource(ARRAY, gate), 20, **GEOMETRY, **options)


def threaded(gate, **options):
    return ChunkedDataLoader(Hanging(gate), 20, executor="threads", threads=2, **options)


LOADERS = {"stream": (stream, 12), "threads": (threaded, 50)}


def first_batch(kind, loader):
    """Return the reads of the first batch, which may come after others of another thread."""
    if kind == "threads":
        return {(index,) for index in loader.samples_at(0).tolist()}
    reads = loader.position.plan.order.window_reads(0, 0, 0)
    return {(read.start, read.start + read.count) for read in reads}


# -- close


@pytest.mark.parametrize("kind", LOADERS)
def test_close_gives_up_on_a_read_that_does_not_return(kind, quick, caplog):
    make, free = LOADERS[kind]
    gate = Gate(free)
    loader = make(gate)
    gate.first = first_batch(kind, loader)
    first = next(iter(loader)).tolist()
    assert gate.entered.wait(PATIENCE)
    with caplog.at_level(logging.WARNING, "penstock"):
        loader.close()  # returns
    assert "gave up waiting after 0.3 s for" in caplog.text and "in thread penstock-" in caplog.text
    if kind == "stream":
        assert "samples " in caplog.text and "WatchedSource" in caplog.text
    assert our_threads()
    gate.open()
    assert not our_threads() and first


@pytest.mark.parametrize("kind", LOADERS)
def test_an_abandoned_read_changes_nothing_that_comes_later(kind, quick):
    """Its thread may write at any time later: never to memory of a later batch."""
    make, free = LOADERS[kind]
    undisturbed = make(Gate(10**9))
    with undisturbed:
        wanted = [batch.tolist() for batch in undisturbed]
    gate = Gate(free)
    loader = make(gate)
    gate.first = first_batch(kind, loader)
    seen = [next(iter(loader)).tolist()]
    assert gate.entered.wait(PATIENCE)
    state = loader.state_dict()
    loader._drop_stream()  # as by a move: the buffers are kept for the next stream
    source = loader.source if kind == "stream" else loader.dataset
    slow, healthy = gate, Gate(10**9)
    if kind == "stream":
        source.before_read = healthy
    else:
        source.gate = healthy
    loader.load_state_dict(state)
    batches = iter(loader)
    kept = [next(batches) for _ in range(20)]
    slow.opened.set()  # the abandoned reads return now, and write
    for thread in our_threads():
        thread.join(0.2)
    kept += list(batches)
    seen += [batch.tolist() for batch in kept]
    assert seen == wanted
    loader.close()
    gate.open()


def test_a_hung_load_function_does_not_hold_up_cleanup_or_the_next_epoch(quick, caplog):
    gate = Gate(2)

    def load(start, end, out=None):
        gate()
        data = np.arange(start, end, dtype=np.float32)
        if out is None:
            return data
        out[0][:] = data
        return None

    loader = RandomChunkLoader(load, 1000, 100, seed=1, prefetch=2)
    loader.start_epoch(10)
    loader.get_next_chunk()
    assert gate.entered.wait(PATIENCE)
    with caplog.at_level(logging.WARNING, "penstock"):
        loader.cleanup()
    assert "gave up waiting" in caplog.text and "in thread penstock-chunks" in caplog.text
    gate.left = 10**9  # the next reads are well; the hung one returns in the midst of them
    loader.start_epoch(10)
    chunks = [loader.get_next_chunk()[0] for _ in range(3)]
    gate.opened.set()
    chunks += [loader.get_next_chunk()[0] for _ in range(7)]
    found = torch.cat(chunks).sort().values
    assert torch.equal(found, torch.arange(1000.0))
    loader.cleanup()
    gate.open()


def test_prefetched_work_that_hangs_is_given_up(quick, caplog):
    gate = Gate(1)
    early = Prefetched(range(5), gate, ahead=2, name="hung")
    next(early)
    assert gate.entered.wait(PATIENCE)
    with caplog.at_level(logging.WARNING, "penstock"):
        early.close()
    assert "in thread penstock-hung" in caplog.text
    gate.open()


def test_stop_all_names_the_read_and_does_not_wait_again_at_exit():
    gate = Gate(0)
    thread = BackgroundThread("stuck", gate, lambda: None)
    start_all([thread])
    thread.activity = "samples 0:10 of a disk"
    assert gate.entered.wait(PATIENCE)
    with pytest.raises(WorkerError, match="samples 0:10 of a disk in thread penstock-stuck"):
        stop_all([thread], timeout=0.05)
    assert thread not in threads._running
    gate.open()


# -- waiting for a batch


@pytest.mark.parametrize("kind", LOADERS)
def test_a_batch_that_does_not_come_in_time_is_an_error_that_names_the_read(kind, quick):
    make, free = LOADERS[kind]
    gate = Gate(free)
    loader = make(gate, timeout=0.5)
    seen = []
    with pytest.raises(WorkerError, match=r"no batch within timeout=0\.5 s: waiting for .* in thr"):
        for batch in loader:
            seen += batch.tolist()
    assert len(seen) % 20 == 0 and loader.state_dict()["position"] == len(seen)
    gate.open()
    loader.load_state_dict(loader.state_dict())
    loader.timeout = 0  # as the message says
    seen += [i for batch in loader for i in batch.tolist()]
    assert sorted(seen) == ARRAY.tolist()
    loader.close()


@pytest.mark.parametrize("kind", LOADERS)
def test_a_long_wait_is_warned_of_sparsely(kind, quick, caplog, monkeypatch):
    monkeypatch.setattr(threads, "WARN_SECONDS", 0.05)
    make, free = LOADERS[kind]
    gate = Gate(free)
    loader = make(gate)
    opening = threading.Timer(1.5, gate.opened.set)
    opening.start()
    with caplog.at_level(logging.WARNING, "penstock"), loader:
        assert sum(len(batch) for batch in loader) == len(ARRAY)
    opening.join()
    said = [r.getMessage() for r in caplog.records if "no batch for" in r.getMessage()]
    assert 1 <= len(said) < 10  # each after twice the time of the one before
    assert "waiting for" in said[0] and "in thread penstock-" in said[0]
    gate.open()


@pytest.mark.parametrize("bad", [-1, "5", True, float("nan"), None])
def test_a_timeout_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="timeout must be"):
        StreamLoader(ARRAY, 20, timeout=bad)


# -- the process


PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
from penstock import ChunkedDataLoader, RandomChunkLoader, StreamLoader
from penstock.streaming import threads
from penstock.testing import WatchedSource
from torch.utils.data import Dataset

threads.STOP_SECONDS = 0.5
entered, delivered = threading.Event(), threading.Event()

def hang(start=0, stop=0):
    few = {"stream": 2, "threads": 8, "chunks": 1}[sys.argv[1]]
    if len(reads) >= few and delivered.wait(20):  # no longer: the first batch may need this read
        entered.set()
        threading.Event().wait()
    reads.append(start)

reads = []

class Hanging(Dataset):
    def __len__(self):
        return 2000
    def __getitem__(self, i):
        hang(i)
        return i

def chunks():
    def load(a, b):
        hang(a)
        return np.zeros(b - a)
    loader = RandomChunkLoader(load, 2000, 20, seed=1)
    loader.start_epoch(100)
    while True:
        yield loader.get_next_chunk()

kinds = {
    "stream": lambda: StreamLoader(WatchedSource(np.arange(2000), hang), 5, block_samples=10,
                                   window_blocks=2),
    "threads": lambda: ChunkedDataLoader(Hanging(), 2, executor="threads", threads=2),
    "chunks": chunks,
}
loader = kinds[sys.argv[1]]()
"""
BEGIN = "it = iter(loader); next(it); delivered.set(); entered.wait(90)"
ENDINGS = {
    "the user's own error": f"{BEGIN}; raise ZeroDivisionError",
    "the end of the program": BEGIN,
    # Python drops an interrupt that arrives in the callback of a weak reference, such as that of a
    # batch that is dropped: so it is sent when the main thread does nothing but wait
    "ctrl-c": """
import logging
threads.WARN_SECONDS = 0.2

class Interrupt(logging.Handler):
    def emit(self, record):
        if "no batch for" in record.getMessage():
            logging.getLogger("penstock").removeHandler(self)
            after = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            after.daemon = True
            after.start()

logging.getLogger("penstock").addHandler(Interrupt())
logging.getLogger("penstock").addHandler(logging.StreamHandler())
for _ in loader: delivered.set()
""",
}


@pytest.mark.parametrize(
    ("kind", "ending"), each_once(["stream", "threads", "chunks"], list(ENDINGS))
)
def test_the_process_ends_although_a_read_never_returns(commands, tmp_path, kind, ending):
    (tmp_path / "program.py").write_text(PROGRAM + ENDINGS[ending])
    program = commands.start(tmp_path, tmp_path / "program.py", kind)
    _, said = program.communicate(timeout=100)  # it does end
    wanted = {"ctrl-c": -signal.SIGINT, "the user's own error": 1, "the end of the program": 0}
    assert program.returncode == wanted[ending], said
    error = {"ctrl-c": "KeyboardInterrupt", "the user's own error": "ZeroDivisionError"}
    assert error.get(ending, "") in said
    assert "gave up waiting after 0.5 s" in said


# -- interrupts


def test_an_interrupt_while_threads_are_stopped_arrives_after_they_have_ended():
    """Ctrl-C again and again inside of the wait: it ends, and the interrupt is not lost."""
    gate = Gate(0)
    some = [BackgroundThread(f"slow-{i}", gate, lambda: None) for i in range(2)]
    start_all(some)
    assert gate.entered.wait(PATIENCE)
    waiting = threading.Event()

    def interrupt():
        waiting.wait(PATIENCE)
        for _ in range(5):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        gate.opened.set()

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        waiting.set()
        stop_all(some)
    assert not any(thread.is_running for thread in some) and not our_threads()
    sender.join()


RANDOM_MOMENTS = """
import os, random, signal, sys, threading, time
import numpy as np
from penstock import StreamLoader
from penstock.testing import WatchedSource

array, rng, found = np.arange(5000), random.Random(int(sys.argv[1])), []
done = threading.Event()

def interrupt(delay):
    time.sleep(delay)
    while not out.is_set():  # Python drops an interrupt that arrives in a weak reference's callback
        os.kill(os.getpid(), signal.SIGINT)
        out.wait(5)

def turn(loader):
    with loader:
        while True:
            for batch in loader:
                if (len(batch) != 20 or len(set(batch.tolist())) != 20):
                    found.append("wrong batch")

def slow(start, stop):
    if rng.random() < 0.02:
        time.sleep(0.003)

for number in range(int(sys.argv[2])):
    loader = StreamLoader(WatchedSource(array, slow), 20, block_samples=10, window_blocks=5)
    out = threading.Event()
    sender = threading.Thread(target=interrupt, args=(rng.random() * 0.05,), daemon=True)
    sender.start()
    try:
        turn(loader)
    except KeyboardInterrupt:
        out.set()
        left = [t.name for t in threading.enumerate() if t.name.startswith("penstock-")]
        if left:
            found.append(f"left {left}")
        if loader.state_dict()["position"] % 20:
            found.append("position")
    sender.join()
print(found)
"""


@pytest.mark.proof
def test_an_interrupt_at_a_random_moment_leaves_no_thread():
    program = [sys.executable, "-W", "ignore", "-c", RANDOM_MOMENTS, "1", "60"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=110)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


@pytest.mark.proof
def test_many_interrupts_at_random_moments_leave_no_thread():
    for seed in range(20):
        program = [sys.executable, "-W", "ignore", "-c", RANDOM_MOMENTS, str(seed), "300"]
        done = subprocess.run(program, capture_output=True, text=True, timeout=600)
        assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


# -- forks


def in_child(body):
    """What ``body`` gives in a forked child, which is killed if it hangs."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(int(PATIENCE))
            os.write(write, str(body()).encode()[:4000])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    assert not os.WIFSIGNALED(status), "the child hung"
    return text


def raised(work):
    try:
        return work()
    except WorkerError as error:
        return f"WorkerError: {error}"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", LOADERS)
def test_a_forked_child_cannot_continue_with_an_iterator_and_can_begin_its_own(kind):
    loader = LOADERS[kind][0](Gate(10**9), chunk_size=60)
    batches = iter(loader)
    next(batches)
    assert "do not exist in the forked process" in in_child(lambda: raised(lambda: list(batches)))

    def as_advised():
        raised(lambda: next(batches))
        return sum(len(batch) for batch in loader)  # iter(loader) again

    assert in_child(as_advised) == str(59 * 20)

    def dropped():  # collecting what the parent's threads held must not wait for their locks
        nonlocal loader, batches
        del loader, batches
        gc.collect()
        return "gone"

    assert in_child(dropped) == "gone"
    assert in_child(lambda: loader.close()) == "None"
    assert sum(len(batch) for batch in batches) == 59 * 20  # and the parent continues
    loader.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_cannot_continue_with_chunks():
    with RandomChunkLoader(lambda a, b: np.zeros(b - a), 1000, 100, seed=1) as loader:
        loader.start_epoch(10)
        loader.get_next_chunk()
        assert "forked process" in in_child(lambda: raised(loader.get_next_chunk))
