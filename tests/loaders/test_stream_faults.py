"""What goes wrong: storage that fails or hangs, and consumers that leave."""

import gc
import json
import random
import select
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import psutil
import pytest
import torch

from penstock.errors import WorkerError
from penstock.loaders.stream import StreamLoader
from penstock.order import BlockOrder
from penstock.testing import WatchedSource

ARRAY = np.arange(600)
GEOMETRY = {"block_samples": 10, "window_blocks": 5}
PATIENCE = 20.0  # for what must happen soon, on a loaded machine


def our_threads():
    return [t for t in threading.enumerate() if t.name.startswith("penstock-")]


def delivered_until_error(loader, error):
    seen = []
    with pytest.raises(error) as caught:
        for batch in loader:
            seen += batch.tolist()
    return seen, caught.value


# -- reads that raise


class Broken(Exception):
    """What a storage may raise."""


def breaks_at(block):
    def before_read(start, stop):
        if start <= block * 10 < stop:
            raise Broken(f"no block {block}")

    return before_read


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_read_that_raises_arrives_as_itself_after_all_batches_before_it(place, shuffle):
    source = WatchedSource(ARRAY)
    options = {**GEOMETRY, "shuffle": shuffle, "drop_last": False}
    with StreamLoader(source, 7, **options) as loader:
        order, steps = loader.position.plan.order, loader.position.plan.steps
        position = {"first": 0, "middle": 300, "last": 599}[place]
        block = int(order.at(0, np.array([position]))[0]) // 10
        source.before_read = breaks_at(block)
        seen, error = delivered_until_error(loader, Broken)
        assert any("reading samples" in note for note in error.__notes__)
        assert any("penstock-read" in note for note in error.__notes__)
        # all batches of the rounds before came, and the cursor is after the last of them
        failed = [k for k in range(order.rounds) if (block * 10, 10) in spans(order, k)]
        begin = order.round_start(0, failed[0])
        assert len(seen) == begin // steps.whole * steps.whole
        assert loader.state_dict()["position"] == len(seen)
        assert not our_threads()
        # and it continues as if nothing had failed, once the storage works again
        source.before_read = lambda start, stop: None
        loader.load_state_dict(loader.state_dict())
        for batch in loader:
            seen += batch.tolist()
        want = np.concatenate([loader.samples_at(step, 0) for step in range(steps.count)])
        assert seen == want.tolist()


def spans(order, k):
    return [(span.start, span.count) for span in order.window_reads(0, k, 0)]


def test_an_error_stays_an_error_until_it_is_mended():
    source = WatchedSource(ARRAY, breaks_at(3))
    with StreamLoader(source, 7, chunk_size=5, **GEOMETRY) as loader:
        for _ in range(3):
            with pytest.raises(Broken):
                for _ in range(20):
                    list(loader)
        source.before_read = lambda start, stop: None
        assert sum(len(batch) for batch in loader) > 0


def test_errors_that_are_no_exceptions_arrive_too():
    def gives_up(start, stop):
        raise SystemExit(3)

    with StreamLoader(WatchedSource(ARRAY, gives_up), 7, **GEOMETRY) as loader:
        with pytest.raises(SystemExit):
            next(iter(loader))


def test_a_storage_that_raises_stop_iteration_does_not_end_the_epoch():
    def stops(start, stop):
        raise StopIteration("nothing more")

    with StreamLoader(WatchedSource(ARRAY, stops), 7, **GEOMETRY) as loader:
        with pytest.raises(WorkerError, match="the source raised StopIteration"):
            next(iter(loader))


def test_an_error_of_the_plan_arrives_as_itself_whichever_reader_meets_it(monkeypatch):
    """A second reader that plans on finds the plan ended: that must not replace the error."""

    def broken(self, epoch, k, column):
        if k == 2:
            raise Broken("of the plan")
        return reads(self, epoch, k, column)

    reads = BlockOrder.window_reads
    monkeypatch.setattr(BlockOrder, "window_reads", broken)
    for _ in range(30):
        with StreamLoader(WatchedSource(ARRAY), 7, threads=6, **GEOMETRY) as loader:
            seen, error = delivered_until_error(loader, Exception)
            assert type(error) is Broken, repr(error)
            assert len(seen) == 98  # all batches of the rounds before


def test_a_transform_or_collate_that_raises_leaves_the_batch_to_come_again():
    calls = []

    def transform(batch, rng):
        calls.append(len(calls))
        if len(calls) == 4:
            raise Broken("of the transform")
        return batch

    with StreamLoader(ARRAY, 20, transform=transform, **GEOMETRY) as loader:
        seen, _ = delivered_until_error(loader, Broken)
        assert loader.state_dict()["position"] == 60 == len(seen)
        loader.load_state_dict(loader.state_dict())
        seen += [i for batch in loader for i in batch.tolist()]
    assert sorted(seen) == ARRAY.tolist()


def test_a_source_slower_than_training_loses_nothing():
    turns, over = threading.Semaphore(0), threading.Event()

    def trickle():
        while not over.wait(0.001):
            turns.release()

    storage = threading.Thread(target=trickle)
    storage.start()
    source = WatchedSource(ARRAY, lambda start, stop: turns.acquire(timeout=PATIENCE))
    with StreamLoader(source, 20, **GEOMETRY) as loader:
        seen = [i for batch in loader for i in batch.tolist()]
    over.set()
    storage.join()
    assert sorted(seen) == ARRAY.tolist()


# -- consumers that leave


def test_close_is_prompt_at_any_moment_and_may_be_repeated():
    for taken in (0, 1, 5, 29):
        loader = StreamLoader(WatchedSource(ARRAY), 20, **GEOMETRY)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        loader.close()
        loader.close()
        assert not our_threads()
        assert len(list(loader)) == 30  # begins again
        loader.close()


class Gate:
    """A storage whose reads hang until it is opened, but for those of the first round."""

    def __init__(self):
        self.entered, self.opened, self.first = threading.Event(), threading.Event(), []

    def __call__(self, start, stop):
        if (start, stop - start) not in self.first:
            self.entered.set()
            assert self.opened.wait(PATIENCE)


def test_close_while_a_read_hangs_returns_once_the_read_does():
    gate = Gate()
    loader = StreamLoader(WatchedSource(ARRAY, gate), 20, **GEOMETRY)
    gate.first = spans(loader.position.plan.order, 0)
    next(iter(loader))
    assert gate.entered.wait(PATIENCE)
    closing = threading.Thread(target=loader.close)
    closing.start()
    assert closing.is_alive()
    gate.opened.set()
    closing.join(PATIENCE)
    assert not closing.is_alive() and not our_threads()


def test_a_consumer_that_waits_is_told_when_another_thread_closes():
    gate, errors = Gate(), []
    loader = StreamLoader(WatchedSource(ARRAY, gate), 20, **GEOMETRY)
    gate.first = spans(loader.position.plan.order, 0)
    pipeline = loader._open(loader.position.plan, loader.position.cursor)._readers

    def consume():
        with pytest.raises(WorkerError) as caught:
            for _ in range(30):
                pipeline.next_batch(20)
        errors.append(str(caught.value))

    consumer, closing = threading.Thread(target=consume), threading.Thread(target=pipeline.close)
    consumer.start()
    assert gate.entered.wait(PATIENCE)
    closing.start()
    consumer.join(PATIENCE)
    assert errors == ["the stream was closed while waiting for a batch"]
    assert closing.is_alive()  # it waits for the read
    gate.opened.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_threads_end_when_a_loader_is_dropped_without_close():
    loader = StreamLoader(WatchedSource(ARRAY), 20, **GEOMETRY)
    batch = next(iter(loader))
    threads = our_threads()
    assert threads
    gc.disable()  # nothing holds it in a circle: it goes at once
    del loader
    gc.enable()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert batch.tolist() == StreamLoader(ARRAY, 20, **GEOMETRY).samples_at(0).tolist()


def test_a_reader_ends_if_its_loader_is_collected_as_it_begins_to_wait(monkeypatch):
    """Then it is not among the waiting ones yet that are notified of the end."""
    wait, armed, kept = threading.Condition.wait, threading.Event(), []

    def collect_and_wait(condition, timeout=None):
        if armed.is_set() and threading.current_thread().name.startswith("penstock-read"):
            kept.clear()
        return wait(condition, timeout)

    kept.append(StreamLoader(ARRAY, 20, threads=1, **GEOMETRY))
    next(iter(kept[0]))
    threads = our_threads()
    monkeypatch.setattr(threading.Condition, "wait", collect_and_wait)
    armed.set()  # from now on only `kept` refers to the loader
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not kept


def test_a_loader_in_a_cycle_may_be_collected_in_its_own_reader_thread():
    """The collector runs where it likes, also under the readers' lock: nothing may wait there."""
    dropped, collected = threading.Event(), threading.Event()

    def collect(start, stop):
        # not a read that the first batch waits for, however late its thread gets to it
        if (start, stop - start) not in first:  # hang until the loader is dropped, then do it here
            assert dropped.wait(PATIENCE)
            deadline = time.monotonic() + PATIENCE
            while gone() is not None and time.monotonic() < deadline:
                gc.collect()  # does nothing while another thread collects
            collected.set()

    gc.collect()  # what other tests left
    source = WatchedSource(np.arange(5000), collect)
    loader = StreamLoader(source, 10, **GEOMETRY)
    first = spans(loader.position.plan.order, 0)
    loader.itself = loader
    gone = weakref.ref(loader)
    next(iter(loader))
    threads = our_threads()
    gc.disable()
    try:
        del loader
        dropped.set()
        assert collected.wait(PATIENCE)
    finally:
        gc.enable()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert gone() is None


def test_an_iterator_that_is_left_ends_nothing_it_should_not():
    with StreamLoader(WatchedSource(ARRAY), 20, chunk_size=10, **GEOMETRY) as loader:
        seen = []
        for _ in range(3):
            for batch in loader:
                seen += batch.tolist()
                break
        seen += [i for batch in loader for i in batch.tolist()]
        assert len(seen) == 200
        seen += [i for _ in range(2) for batch in loader for i in batch.tolist()]
    assert sorted(seen) == ARRAY.tolist()


# -- the process


# each line of its input is a program, run in a fork up to the end of the interpreter: importing
# torch takes longer than all of them
PROGRAMS = """
import json, os, signal, sys, threading
import numpy as np
from penstock.loaders.stream import StreamLoader
from penstock.domains.recording.chunk_loader import RandomChunkLoader
from penstock.testing import WatchedSource

while line := sys.stdin.readline():
    body, *files = json.loads(line)
    if not (pid := os.fork()):
        for number, path in enumerate(files, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
exec(body)
"""

INTERRUPTED = """
hang = threading.Event()
entered = threading.Event()

def before_read(start, stop):
    if len(source.reads) > 20:
        entered.set()
        hang.wait(60)

source = WatchedSource(np.arange(5000), before_read)

def interrupt():
    entered.wait(60)
    os.kill(os.getpid(), signal.SIGINT)
    hang.set()

threading.Thread(target=interrupt, daemon=True).start()
loader = StreamLoader(source, 20, block_samples=10, window_blocks=5)
try:
    with loader:
        while True:
            for batch in loader:
                pass
except KeyboardInterrupt:
    left = [t.name for t in threading.enumerate() if t.name.startswith("penstock-")]
    print("interrupted", left, loader.state_dict()["position"] % 20)
"""


@pytest.fixture(scope="module")
def programs():
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", PROGRAMS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, **pipes) as programs:
        yield programs
        programs.stdin.close()


@pytest.fixture
def run(programs, tmp_path):
    def run(body):
        files = tmp_path / "stdout", tmp_path / "stderr"
        print(json.dumps([body, *map(str, files)]), file=programs.stdin)
        if not select.select([programs.stdout], [], [], 110)[0]:
            children = psutil.Process(programs.pid).children()
            for process in [*children, programs]:
                process.kill()
            pytest.fail(f"does not end: {[file.read_text() for file in files]}")
        code = int(programs.stdout.readline())
        return subprocess.CompletedProcess(body, code, *(file.read_text() for file in files))

    return run


@pytest.mark.timing
def test_ctrl_c_ends_it_cleanly(run):
    done = run(INTERRUPTED)
    assert done.stdout == "interrupted [] 0\n", done.stderr
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.timing
def test_an_uncaught_ctrl_c_ends_the_process_as_python_does(run):
    body = INTERRUPTED.replace("except KeyboardInterrupt:", "except ZeroDivisionError:")
    done = run(body)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "Exception in thread" not in done.stderr
    assert "Fatal" not in done.stderr


@pytest.mark.timing
def test_the_interpreter_exits_with_live_loaders(run):
    body = """
loaders = [StreamLoader(np.arange(5000), 20, block_samples=10, window_blocks=5) for _ in range(3)]
kept = [next(iter(loader)) for loader in loaders]
loaders.append(loaders)
chunks = RandomChunkLoader(lambda a, b: np.zeros(b - a), 1000, 10, seed=1)
chunks.start_epoch(100)
chunks.get_next_chunk()
print("done")
"""
    done = run(body)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


def test_random_cycles_leave_no_thread_no_file_and_no_memory(tmp_path):
    cycles(tmp_path, 200)


@pytest.mark.proof
def test_very_many_random_cycles_leave_no_thread_no_file_and_no_memory(tmp_path):
    cycles(tmp_path, 2000)


def cycles(tmp_path, count):
    """Open, iterate, break, close, seek and load at random; compare with the beginning."""
    np.save(tmp_path / "x.npy", np.arange(20_000 * 8, dtype="f4").reshape(20_000, 8))
    process, rng, loader = psutil.Process(), random.Random(3), None
    states, early = [], None
    for cycle in range(count + 20):
        if cycle == 20:  # after warming up
            early = process.memory_info().rss, process.num_fds()
        if loader is None or rng.random() < 0.4:
            if loader is not None and rng.random() < 0.5:
                loader.close()
            options = {"window_blocks": 20, "chunk_size": rng.choice([None, 50])}
            loader = StreamLoader(
                tmp_path / "x.npy", rng.choice([16, 64]), block_samples=100, **options
            )
        if states and rng.random() < 0.3:
            loader.load_state_dict(rng.choice(states))
        if rng.random() < 0.2:
            loader.seek(rng.randrange(3), rng.randrange(200))
        stop = rng.randrange(1, 40)
        for step, batch in enumerate(loader):
            assert bool((batch[:, 0] + 1 == batch[:, 1]).all())
            if step == stop:
                break
        states.append(loader.state_dict())
        del batch
    loader.close()
    del loader
    gc.collect()
    for thread in our_threads():  # of loaders that were dropped just now
        thread.join(PATIENCE)
    assert not our_threads()
    rss, files = process.memory_info().rss, process.num_fds()
    assert files <= early[1]
    assert rss < early[0] + 60e6


def test_states_and_moves_between_iterations_are_exact():
    with StreamLoader(WatchedSource(ARRAY), 20, **GEOMETRY) as loader:
        batches = iter(loader)
        first = [next(batches).clone() for _ in range(3)]
        state = loader.state_dict()
        loader.seek(4, 7)
        assert torch.equal(next(iter(loader)), torch.from_numpy(loader.samples_at(7, 4)))
        loader.load_state_dict(state)
        assert loader.remaining == 27
        rest = list(loader)
        together = torch.cat([*first, *rest])
        assert together.sort().values.tolist() == ARRAY.tolist()


def test_peeking_moves_nothing_and_stays_in_the_budget():
    with StreamLoader(WatchedSource(ARRAY), 20, chunk_size=5, **GEOMETRY) as loader:
        list(loader)
        before = loader.state_dict()
        seen = loader.peek()
        assert not our_threads()
        assert loader.state_dict() == before
        assert torch.equal(seen, next(iter(loader)))
