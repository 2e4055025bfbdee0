"""Parametrized tests over several axes: a few cases by default, all of them in ``make proof``."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest


def each_once(*axes: list[Any]) -> list[Any]:
    """All combinations of the axes; the fewest that have every value in them run by default."""
    count = max(map(len, axes))
    few = [tuple(axis[number % len(axis)] for axis in axes) for number in range(count)]
    return [
        pytest.param(*case, marks=[] if case in few else [pytest.mark.proof])
        for case in product(*axes)
    ]
