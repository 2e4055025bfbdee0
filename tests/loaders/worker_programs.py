"""Programs that tests run, kill and interrupt: ``python worker_programs.py NAME ...``."""

import ctypes
import gc
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from multiprocessing.synchronize import SemLock
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock import ChunkedDataLoader, ReplayLoader

BEHAVIOURS = ["idle", "busy", "locked", "holds the interpreter", "stopped"]


class Large(Dataset):
    """Samples whose batches go through shared memory."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((1 << 18,), index)


class Misbehaving(Large):
    """Each worker delivers a batch of two samples, then behaves in a way of its own."""

    def __init__(self, behaviours, folder):
        self.behaviours, self.folder, self.behaved = behaviours, Path(folder), False

    def __getitem__(self, index):
        if index >= 2 * len(self.behaviours) and not self.behaved:
            self.behaved = True
            wait_for((self.folder / "all arrived").exists)  # another thread sends what was read
            (self.folder / str(os.getpid())).touch()
            self.behave(self.behaviours[get_worker_info().id])
        return super().__getitem__(index)

    def behave(self, behaviour):
        while behaviour == "busy":
            pass
        if behaviour == "locked":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        if behaviour == "holds the interpreter":
            ctypes.PyDLL(None).sleep(1000)
        if behaviour == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)


def misbehaving(method, behaviours):
    """A loader, an iterator of it, and what each of its workers delivered first."""
    options = {"num_workers": len(behaviours), "multiprocessing_context": method}
    warnings.filterwarnings("ignore", "This DataLoader will create")
    with TemporaryDirectory() as folder:
        dataset = Misbehaving(behaviours, folder)
        loader = ChunkedDataLoader(dataset, 2, 100, shuffle=False, **options)
        batches = iter(loader)
        came = [next(batches) for _ in behaviours]
        (dataset.folder / "all arrived").touch()
        wait_for(lambda: len(list(dataset.folder.glob("[0-9]*"))) == len(behaviours))
    return loader, batches, came


def wait_for(condition, seconds=100):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def killed(method, *behaviours):
    """Say what there is, and wait to be killed."""
    multiprocessing.set_forkserver_preload(["penstock.loaders"])
    kept.append(misbehaving(method, behaviours))
    locks = [thing._semlock.name for thing in gc.get_objects() if isinstance(thing, SemLock)]
    locks = [name for name in locks if name is not None]  # fork keeps no name
    print(json.dumps(locks), flush=True)
    while True:  # a signal that arrives just before a wait does not end that wait
        time.sleep(1)


def starting(method):
    """Say so, then start workers, again and again."""
    multiprocessing.set_forkserver_preload(["penstock.loaders"])
    print(json.dumps([]), flush=True)
    while True:
        loader, *_ = misbehaving(method, ["idle"] * 2)
        loader.close()


class Killer(IterableDataset):
    """Kills the process that iterates, and reads for a minute."""

    def __iter__(self):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
        return iter(range(10))


def replay(method):
    """Be killed by a worker."""
    multiprocessing.set_start_method(method)
    print(json.dumps([]), flush=True)
    next(iter(ReplayLoader(Killer(), batch_size=2, num_workers=1, collate_fn=None, seed=0)))


def leaves(how, method, *behaviours):
    """End without ``close()``, in the midst of an iteration."""
    loader, batches, _ = misbehaving(method, behaviours)
    if how == "alive":
        kept.append(batches)
    elif how == "broken off":
        kept.append(loader)
    print("leaving", flush=True)


kept = []


def interrupts(method, rounds, seed):
    """Ctrl-C at one call after another of start, reading and close; say what is left."""
    multiprocessing.set_forkserver_preload(["penstock.loaders"])
    options = {"num_workers": 2, "multiprocessing_context": method}
    loader = ChunkedDataLoader(range(600), 4, 5, **options)

    def work():
        for _, _batch in zip(range(3), loader, strict=False):
            pass
        loader.close()

    work()
    draws, calls, slow, lost = random.Random(int(seed)), count_calls(work), [], []
    for _ in range(int(rounds)):
        moment, begin = draws.randrange(1, calls), time.monotonic()
        try:
            if interrupt_at(moment, work):
                lost.append(moment)
        except KeyboardInterrupt:
            pass
        if (seconds := time.monotonic() - begin) > 10:
            slow.append((moment, seconds))
    loader.close()
    gc.collect()
    print(json.dumps({"slow": slow, "lost": lost, **left_over()}), flush=True)


def count_calls(work):
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def interrupt_at(moment, work):
    left, fired = moment, False

    def count(frame, event, arg):
        nonlocal left, fired
        left -= 1
        if left <= 0 and not fired and not in_finalizer(frame):
            fired = True
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return fired


def in_finalizer(frame):
    """Python ignores what is raised there, Ctrl-C too."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename.endswith("weakref.py"):
            return True
        frame = frame.f_back
    return False


def cycles(method, count):
    """Open, read a batch, break and close, ``count`` times; say what has grown."""
    options = {"num_workers": 2, "multiprocessing_context": method}
    before = None
    for cycle in range(int(count)):
        loader = ChunkedDataLoader(Large(), 2, 100, persistent_workers=cycle % 2 == 0, **options)
        for _batch in loader:
            break
        loader.close()
        if cycle == 1:
            before = left_over()
    print(json.dumps([before, left_over()]), flush=True)


def left_over():
    """What this process holds on to."""
    gc.collect()
    named = [thread.name for thread in threading.enumerate()]
    return {
        "children": [child.pid for child in multiprocessing.active_children()],
        "threads": [name for name in named if name != "MainThread"],
        "files": len(os.listdir("/proc/self/fd")),
        "memory": [name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name],
    }


UNGUARDED = """
import numpy as np
from penstock import ChunkedDataLoader, StreamLoader

def main():
    train = StreamLoader(np.arange(1000), 10)
    val = ChunkedDataLoader([float(i) for i in range(100)], 10, {options})
    for k, batch in enumerate(train):
        if k == 5:
            {first}
            print("validated", sum(len(x) for x in val), flush=True)
            break
    train.close(), val.close()

{guard}main()
"""

if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
