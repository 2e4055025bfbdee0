"""A pytest plugin that runs every test many times: used by `python -m tests.campaigns flaky`.

``FLAKY_RESULTS`` is a file with one JSON line per run, to which every run is appended. A test that
has ``FLAKY_TIMES`` of them is left out; every other is run at most ``FLAKY_RUNS`` times. None
begins after the moment ``FLAKY_ENDS``, in seconds since 1970.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

used: Counter[str] = Counter()  # seconds of the run of each test: it has three phases
failures: dict[str, str] = {}


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the recorded runs, ``count`` of them a line; the last line may be cut short."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}\n")]


def runs_in_a_row(outcomes: Iterable[dict[str, Any]]) -> Counter[str]:
    """How many runs of each test there were since it last failed.

    >>> runs = [("a", "passed"), ("a", "failed"), ("a", "passed"), ("b", "failed")]
    >>> runs_in_a_row([{"test": test, "outcome": outcome} for test, outcome in runs])
    Counter({'a': 1, 'b': 0})
    """
    counts: Counter[str] = Counter()
    for each in outcomes:
        counts[each["test"]] += each.get("count", 1)
        if each["outcome"] == "failed":
            counts[each["test"]] = 0
    return counts


def joined(outcomes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line for all runs of a test since it last failed, and one for each failure.

    >>> runs = [{"test": "a", "seconds": 0.1, "outcome": "passed"}] * 2
    >>> joined(runs)
    [{'test': 'a', 'seconds': 0.2, 'outcome': 'passed', 'count': 2}]
    """
    failures, passed = [], {}
    for each in outcomes:
        if each["outcome"] == "failed":
            failures.append(each)
            passed.pop(each["test"], None)
            continue
        before = passed.get(each["test"], {"seconds": 0.0})
        passed[each["test"]] = each | {
            "seconds": round(before["seconds"] + each["seconds"], 3),
            "count": before.get("count", 0) + each.get("count", 1),
        }
    return failures + [passed[test] for test in sorted(passed)]


def again(item: pytest.Item) -> pytest.Item:
    """Return the same test once more."""
    assert isinstance(item, pytest.Function)
    return pytest.Function.from_parent(
        item.parent,
        name=item.name,
        callspec=getattr(item, "callspec", None),
        fixtureinfo=item._fixtureinfo,
        originalname=item.originalname,
    )


@pytest.hookimpl(trylast=True)  # after pytest has selected by mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Repeat every test that has too few runs."""
    if config.option.collectonly:
        return
    done = runs_in_a_row(read_runs(Path(os.environ["FLAKY_RESULTS"])))
    times, most = int(os.environ["FLAKY_TIMES"]), int(os.environ["FLAKY_RUNS"])
    items[:] = [again(item) for item in items for _ in range(min(most, times - done[item.nodeid]))]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol() -> bool | None:
    """Begin no test when the time is over."""
    return True if time.time() > float(os.environ["FLAKY_ENDS"]) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Record the time and the result of a run when it has ended."""
    report = yield
    name = item.nodeid
    used[name] += call.duration
    if report.failed:
        failures.setdefault(name, str(report.longrepr)[-3000:])
    if report.when == "teardown":
        line = {"test": name, "seconds": round(used.pop(name), 3), "outcome": "passed"}
        if name in failures:
            line |= {"outcome": "failed", "why": failures.pop(name)}
        with Path(os.environ["FLAKY_RESULTS"]).open("a") as file:
            file.write(json.dumps(line) + "\n")
    return report
