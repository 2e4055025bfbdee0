"""A pytest plugin that runs every test many times: used by `python -m tests.campaigns flaky`.

``FLAKY_TIMES`` is the number of runs of a test; none begins after the test has used
``FLAKY_SECONDS``. Results are appended to ``FLAKY_RESULTS``, one JSON line per run.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

TIMES = int(os.environ.get("FLAKY_TIMES", "1"))
SECONDS = float(os.environ.get("FLAKY_SECONDS", "60"))
RESULTS = os.environ.get("FLAKY_RESULTS")

used: Counter[str] = Counter()  # seconds of each test


@pytest.fixture
def run_number(request: pytest.FixtureRequest) -> int:
    """The number of this run of the test."""
    return int(request.param)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make ``TIMES`` tests of each."""
    metafunc.fixturenames.append("run_number")
    metafunc.parametrize("run_number", range(TIMES), indirect=True, ids=lambda n: f"run{n}")


def test_of(nodeid: str) -> str:
    """Return the name of a test without the number of its run.

    >>> test_of("a.py::test_b[x-run3]"), test_of("a.py::test_b[run3]")
    ('a.py::test_b[x]', 'a.py::test_b')
    """
    head, _, tail = nodeid.rpartition("[")
    parts = [part for part in tail.removesuffix("]").split("-") if not part.startswith("run")]
    return f"{head}[{'-'.join(parts)}]" if parts else head


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the runs of a test that has used its time."""
    if used[test_of(item.nodeid)] > SECONDS:
        pytest.skip("the test has used its time")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Record the time and the result of a run."""
    report = yield
    name = test_of(item.nodeid)
    used[name] += call.duration
    if RESULTS and (report.when == "call" or report.failed):
        line = {"test": name, "seconds": round(call.duration, 3), "outcome": report.outcome}
        if report.failed:
            line["why"] = str(report.longrepr)[-2000:]
        with Path(RESULTS).open("a") as file:
            file.write(json.dumps(line) + "\n")
    return report
