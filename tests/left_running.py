"""The fixture that fails a test which leaves a thread or a process running."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

PATIENCE_SECONDS = 5.0  # for threads and processes that were asked to end
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Fail a test that leaves a ``penstock-`` thread or a child process behind."""
    threads, children = our_threads(), our_children()
    yield
    left = [thread for thread in our_threads() - threads if outlives(thread)]
    earlier = {child.pid for child in children}
    for worker in multiprocessing.active_children():
        if worker.pid not in earlier:
            worker.join(PATIENCE_SECONDS)
    # not by `psutil.wait_procs`: a worker that it reaps counts as alive for ever
    alive, end = our_children() - children, time.monotonic() + PATIENCE_SECONDS
    while (alive := {child for child in alive if is_ours(child)}) and time.monotonic() < end:
        time.sleep(0.01)
    names = [f"thread {thread.name}" for thread in left]
    names += [f"process {child.pid}: {command(child)[:120]}" for child in alive]
    for child in alive:
        child.kill()
    if names:
        pytest.fail(f"left running: {'; '.join(names)}", pytrace=False)


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock-")}


def outlives(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_SECONDS)
    return thread.is_alive()


def our_children() -> set[psutil.Process]:
    """Children of this process, except for those that belong to multiprocessing itself."""
    found = set()
    for pid in descendants(os.getpid()):
        with suppress(psutil.NoSuchProcess):
            found.add(psutil.Process(pid))
    return {child for child in found if is_ours(child)}


def is_ours(child: psutil.Process) -> bool:
    """Whether it runs, and is no helper, which may have been a fork of this process just before."""
    try:  # a process that has just been started may have no command line yet
        return child.status() != psutil.STATUS_ZOMBIE and not any(
            name in " ".join(child.cmdline()) for name in HELPERS
        )
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> list[int]:
    """Return the children of a process and theirs: twice in every test, and psutil needs 5 ms."""
    if not Path("/proc/self/task").exists():
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    found, parents = [], [pid]
    while parents:
        tasks = f"/proc/{parents.pop()}/task"
        with suppress(OSError):  # it ended meanwhile
            for task in os.listdir(tasks):
                with suppress(OSError):
                    children = [*map(int, Path(tasks, task, "children").read_text().split())]
                    found += children
                    parents += children
    return found


def command(child: psutil.Process) -> str:
    """The command line of a process, or ``""`` if the process is gone."""
    try:
        return " ".join(child.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
