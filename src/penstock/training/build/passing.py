"""Modules one after the other, each given those further things that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from torch import nn


def accepted(function: Callable[..., Any], extras: dict[str, Any]) -> dict[str, Any]:
    """Those of ``extras`` that a function takes by name; all of them if it takes any.

    >>> accepted(lambda x, lengths: None, {"lengths": 3, "rate": 1})
    {'lengths': 3}
    """
    if not extras:
        return extras
    names = _names(getattr(function, "__func__", function))
    return extras if names is None else {n: v for n, v in extras.items() if n in names}


@lru_cache(maxsize=256)  # of functions, not of bound methods: they would keep their modules alive
def _names(function: Callable[..., Any]) -> frozenset[str] | None:
    """The names of a function's parameters; None where it takes any."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return None
    return frozenset(parameters)


class Chain(nn.Module):
    """Modules in a row. Each may take further things by name, and may give some on.

    A module gives a tensor; or a tuple of it and, perhaps, a dict for those after it.
    """

    def __init__(self, *modules: nn.Module | None) -> None:
        super().__init__()
        self.steps = nn.ModuleList(each for each in modules if each is not None)

    def forward(self, x: Any, **extras: Any) -> tuple[Any, dict[str, Any]]:
        """What the last one gives, and what was passed on."""
        for step in self.steps:
            found = step(x, **accepted(step.forward, extras))
            if isinstance(found, tuple):
                further = found[1] if len(found) > 1 and isinstance(found[1], dict) else {}
                found, extras = found[0], extras | further
            x = found
        return x, extras
