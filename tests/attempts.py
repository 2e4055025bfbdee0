"""Laws about measured times, on machines that other programs use too."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

# lines of a log that depend on the machine: the verdict of a run, and its stalls
VERDICT = re.compile(r"(data|compute)-bound\b|start-up:|^  stall")


def attempts(times: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test until it passes, ``times`` at most.

    Only for tests that compare a figure with a clock: another program can disturb a measurement,
    while a figure that is computed wrongly fails in every attempt.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def repeated(*args: Any, **kwargs: Any) -> None:
            for _ in range(times - 1):
                try:
                    return test(*args, **kwargs)
                except AssertionError:
                    continue
            return test(*args, **kwargs)

        return repeated

    return decorate
