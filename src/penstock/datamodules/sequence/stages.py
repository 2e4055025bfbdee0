"""Setting up once, whoever asks for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any


def staged(setup: Callable[..., Any]) -> Callable[..., Any]:
    """A ``setup()`` that Lightning may call for every stage: it is done once."""
    takes_stage = "stage" in inspect.signature(setup).parameters

    @wraps(setup)
    def run(self: Any, stage: str | None = None) -> Any:
        if takes_stage:
            return setup(self, stage)
        done = any(d is not None for d in (self.dataset_train, self.dataset_val, self.dataset_test))
        return None if stage is not None and done else setup(self)

    return run
