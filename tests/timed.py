"""Which tests depend on the moment at which something happens: they get the mark ``timing``.

A test has the mark if it, or something of its module that it uses, names a thread, a process, a
signal or a clock, or if it runs a command. A test that only reads what a program wrote in a fixture
of the whole file has no mark: to run it again is to read the same again. What this cannot see is
marked by hand: ``@pytest.mark.timing``, or ``@pytest.mark.steady`` where no moment matters.
`make flaky` runs these tests many times on a busy machine.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

import pytest

NAMES = {
    *("threading", "Thread", "Barrier", "Semaphore", "multiprocessing", "subprocess", "Popen"),
    *("signal", "kill", "killpg", "fork", "psutil", "torchrun", "run_ranks", "run_program"),
    *("num_workers", "StreamLoader", "RandomChunkLoader", "ThreadStream", "executor", "workers"),
    *("sleep", "perf_counter", "monotonic", "thread_time"),
}
FIXTURES = {"commands", "server"}


def depends_on_time(item: pytest.Item) -> bool:
    """Does the test use threads, processes, signals or clocks?"""
    function = getattr(item, "function", None)
    if function is None or item.get_closest_marker("steady"):  # a doctest; or marked by hand
        return False
    if FIXTURES & set(requested(item)):
        return True
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    return mentions(inspect.unwrap(function), item.module, set())  # type: ignore[attr-defined]


def requested(item: pytest.Item) -> Iterator[str]:
    """Return the fixtures that are made again for every run of the test, and what they use."""
    fixtures = item._fixtureinfo  # type: ignore[attr-defined]
    names = list(fixtures.initialnames)
    for name in names:
        yield name
        for fixture in fixtures.name2fixturedefs.get(name, ())[-1:]:
            if fixture.scope == "function":
                names += [other for other in fixture.argnames if other not in names]


def mentions(thing: Any, module: ModuleType, seen: set[int]) -> bool:
    """Does a function or a class, or what it uses of its module, have one of `NAMES` in it?"""
    if id(thing) in seen or getattr(thing, "__module__", None) != module.__name__:
        return False
    seen.add(id(thing))
    if isinstance(thing, type):
        return any(mentions(each, module, seen) for each in vars(thing).values())
    code = getattr(thing, "__code__", None)
    if code is None:
        return False
    used = names_in(code)
    return bool(used & NAMES) or any(
        mentions(vars(module)[name], module, seen) for name in used & vars(module).keys()
    )


def names_in(code: CodeType) -> set[str]:
    """Global names, attributes and keyword arguments of a function and those inside of it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
        elif isinstance(constant, tuple):  # the names of keyword arguments
            names |= {each for each in constant if isinstance(each, str)}
    return names
