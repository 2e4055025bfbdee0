"""What every test of the house keeps to: nothing runs on after it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

PATIENCE_SECONDS = 5.0  # for what was told to end to be gone
SERVANTS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

# a shell has what it runs in the background ignore Ctrl-C, and so would all that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)

# spawned workers import the datasets of tests by the name of their module
sys.path.insert(0, str(Path(__file__).parents[1]))

slow_is_fine = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "quick", max_examples=50, deadline=None, suppress_health_check=slow_is_fine
)
settings.register_profile(
    "proof", max_examples=2000, deadline=None, suppress_health_check=slow_is_fine
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long campaigns run when they are asked for (``-m proof``), not beside the others."""
    if config.getoption("markexpr") or any("::" in arg for arg in config.args):
        return
    long = [item for item in items if item.get_closest_marker("proof")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Fail a test that leaves a ``penstock-`` thread or a child process behind."""
    threads, children = our_threads(), our_children()
    yield
    left = [thread for thread in our_threads() - threads if outlives(thread)]
    multiprocessing.active_children()  # reaps those that ended
    late = list(our_children() - children)
    _, alive = psutil.wait_procs(late, timeout=PATIENCE_SECONDS) if late else ([], [])
    names = [f"thread {thread.name}" for thread in left]
    names += [f"process {child.pid}: {command(child)[:120]}" for child in alive if command(child)]
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
    """Children of this process, but for those that serve multiprocessing itself."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if not any(name in command(child) for name in SERVANTS)}


def command(child: psutil.Process) -> str:
    """The command line of a process; nothing where it is gone."""
    try:
        return " ".join(child.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
