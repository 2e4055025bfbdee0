"""Every public argument refuses what it cannot use, in a sentence that names it."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import penstock
from penstock.errors import PenstockError
from tests.argument_table import Call, every_call

LONGEST_SECONDS = 20  # that a refusal may take, before it counts as a hang


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    return every_call(tmp_path_factory.mktemp("arguments"))


@contextmanager
def bounded() -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise AssertionError(f"no answer within {LONGEST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fault_of(call: Call, argument: str, value: Any) -> str | None:
    """What is wrong with how this value is answered; None where it is refused in a sentence."""
    good = call.good()
    try:
        with bounded():
            call.call(**{**good, argument: value})
    except PenstockError as error:
        return None if argument in str(error) else f"does not name it: {error}"
    except Exception as error:  # noqa: BLE001 - what it is, is what is reported
        return f"raw {type(error).__name__}: {str(error)[:120]}"
    return "accepted silently"


def test_each_valid_call_is_accepted(calls: list[Call]) -> None:
    for call in calls:
        made = call.call(**call.good())
        getattr(made, "close", lambda: None)()


def test_every_wrong_value_is_refused_in_a_sentence_that_names_the_argument(
    calls: list[Call], record_property: Any
) -> None:
    faults, tried = [], 0
    for call in calls:
        for argument, value in call.cases():
            tried += 1
            fault = fault_of(call, argument, value)
            if fault is not None:
                faults.append(f"{call.name}({argument}={value!r}): {fault}")
    record_property("cases", tried)
    print(f"{tried} cases")
    assert not faults, f"{len(faults)} of {tried} cases:\n" + "\n".join(faults)


def test_no_argument_of_a_constructor_or_function_is_forgotten(calls: list[Call]) -> None:
    known = {call.name: {*call.kinds, *call.free} for call in calls}
    missing = []
    for name in known:
        target = penstock
        for part in name.split("."):
            target = getattr(target, part)
        parameters = inspect.signature(target).parameters.values()
        own = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        missing += [f"{name}({argument})" for argument in own - known[name] - {"self"}]
    assert not missing, missing
