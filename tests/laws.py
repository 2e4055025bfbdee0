"""Hypothesis tests ("laws"): how many examples each of them runs, and for how long.

``HYPOTHESIS_PROFILE=quick`` (the default) runs 50 examples of a law, or the number in the law's
own ``@settings``. ``HYPOTHESIS_PROFILE=proof`` runs 2,000 examples of *every* law, whatever its
``@settings`` say, until ``LAW_SECONDS`` have passed; the summary names the laws that ran fewer.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = {"quick": 50, "proof": int(os.environ.get("LAW_EXAMPLES", "2000"))}
LAW_SECONDS = float(os.environ.get("LAW_SECONDS", "20"))
# where Hypothesis keeps the settings of a test; tests/test_laws.py fails if it moves
SETTINGS = "_hypothesis_internal_use_settings"

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def load_profile() -> str:
    """Register the profiles and load the one that ``HYPOTHESIS_PROFILE`` names."""
    for name, examples in EXAMPLES.items():
        settings.register_profile(
            name,
            max_examples=examples,
            deadline=None,
            derandomize=name == "quick",  # the same examples in every run: proof varies them
            suppress_health_check=SLOW,
        )
    profile = os.environ.get("HYPOTHESIS_PROFILE", "quick")
    settings.load_profile(profile)
    return profile


def is_law(item: pytest.Item) -> bool:
    """Is it a test of Hypothesis?"""
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


def lengthen(laws: list[pytest.Item]) -> None:
    """Give every law the examples of the proof profile, within ``LAW_SECONDS``."""
    counted: dict[Callable[..., Any], Counted] = {}
    for law in laws:
        test = law.obj  # type: ignore[attr-defined]
        function = getattr(test, "__func__", test)  # a method's settings are its function's
        if function not in counted:  # several items where it is parametrized too
            longer = settings(getattr(function, SETTINGS), max_examples=EXAMPLES["proof"])
            setattr(function, SETTINGS, longer)
            counted[function] = Counted(function.hypothesis)
        law.stash[COUNTED] = counted[function]


class Counted:
    """The body of a law: counts its examples, and returns at once when its time is over."""

    def __init__(self, handle: Any) -> None:
        inner = handle.inner_test
        self.restart()

        @functools.wraps(inner)
        def body(*args: Any, **kwargs: Any) -> Any:
            if time.monotonic() > self.ends:
                self.left_out += 1
                return None
            self.run += 1
            return inner(*args, **kwargs)

        handle.inner_test = body

    def restart(self) -> None:
        """Count from 0, with the whole time: for the next case of a parametrized law."""
        self.run, self.left_out = 0, 0
        self.ends = time.monotonic() + LAW_SECONDS


COUNTED = pytest.StashKey[Counted]()


def run_law(item: pytest.Item) -> Iterator[None]:
    """Around the call of a test: note how many examples a law ran if its time was too short."""
    law = item.stash.get(COUNTED, None)
    if law is not None:
        law.restart()
    yield
    if law is not None and law.left_out:
        line = f"{item.nodeid}: {law.run:,} examples in {LAW_SECONDS:g} s"
        item.user_properties.append(("law", line))  # reaches the summary under xdist too


def shortened(reports: list[Any]) -> list[str]:
    """The notes of `run_law` in the reports of tests that passed."""
    return [line for report in reports for name, line in report.user_properties if name == "law"]
