"""Settings and checks that apply to every test."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

# spawned workers import the datasets of tests by the name of their module
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import laws, missing_domains, timed
from tests.left_running import nothing_is_left_running as nothing_is_left_running

# the same on every version of Python: 3.14 starts processes by forkserver unless told otherwise,
# and what that does is tested by name
multiprocessing.set_start_method("fork")
# a forkserver imports torch once, and not again in every worker of every test
multiprocessing.set_forkserver_preload(["torch", "penstock.loaders"])

# a shell makes its background jobs ignore Ctrl-C, and so would everything that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)

PROFILE = laws.load_profile()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out tests that use a domain whose folder was deleted."""
    return True if missing_domains.uses_a_missing_domain(collection_path) else None


def pytest_report_header() -> list[str]:
    """Say which tests are left out."""
    found = missing_domains.left_out()
    return [f"left out, without their domain: {', '.join(found)}"] if found else []


@pytest.hookimpl(tryfirst=True)  # before pytest selects by mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark laws and tests that depend on time; leave out proofs unless they are asked for."""
    for item in items:
        if laws.is_law(item):
            item.add_marker("law")
        if timed.depends_on_time(item):
            item.add_marker("timing")
    # files of a few long tests first: at the end, processes side by side share the short ones
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: sizes[item.path])
    if PROFILE == "proof":
        laws.lengthen([item for item in items if laws.is_law(item)])
    if config.getoption("markexpr") or any("::" in arg for arg in config.args):
        return
    long = [item for item in items if item.get_closest_marker("proof")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("proof")]


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collections, and its pages shared with forks."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Do so again after every file: a collection then looks at what its tests made, not more."""
    if nextitem is None or nextitem.path != item.path:
        pytest_collection_finish()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Count the examples of a law."""
    yield from laws.run_law(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which laws ran fewer examples than the profile asks for."""
    short = laws.shortened(terminalreporter.stats.get("passed", []))
    if short:
        terminalreporter.section(f"laws that ran out of their {laws.LAW_SECONDS:g} s")
        terminalreporter.write_line("\n".join(short))


@pytest.fixture(scope="session")
def commands():
    """Commands and programs in forks of a process that has imported everything."""
    from tests.cli.projects import Commands

    with closing(Commands()) as commands:
        yield commands


@pytest.fixture(autouse=True)
def torch_looks_often_at_its_workers() -> None:
    """Look every second: a test of a worker that died or cannot end would wait 5 s for torch."""
    if "torch.utils.data.dataloader" in sys.modules:
        from torch.utils.data import _utils
        from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

        _utils.MP_STATUS_CHECK_INTERVAL = 1.0
        _MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (1.0,)


@pytest.fixture(autouse=True)
def the_log_is_left_as_it_was() -> Iterator[None]:
    """Fail a test that switches the log of the library off for the tests after it."""
    log = logging.getLogger("penstock")
    yield
    left = (log.disabled, log.propagate, log.level)
    log.disabled, log.propagate = False, True
    log.setLevel(logging.NOTSET)
    assert left == (False, True, logging.NOTSET)
