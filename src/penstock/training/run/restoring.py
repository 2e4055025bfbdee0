"""A checkpoint that does not fit what is to go on with it: refused, with the first difference."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import Any

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.training.run.wording import in_a_line

connector = optional("lightning.pytorch.trainer.connectors.checkpoint_connector", extra="train")


def came_from_restoring(error: BaseException) -> bool:
    """Was it raised as Lightning put a checkpoint into models, optimizers and callbacks?"""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename == connector.__file__ for frame, _ in frames)


def misfit(difference: str) -> ConfigError:
    """What to raise instead, in one sentence."""
    return ConfigError(
        f"the checkpoint does not fit this configuration: {difference}; resume with the "
        "model and the optimizer it was trained with, or begin in another run_dir"
    )


def first_mismatch(error: BaseException) -> str:
    """The first difference that torch found, of perhaps hundreds.

    >>> first_mismatch(RuntimeError('Missing key(s) in state_dict: "a.b", "a.c".'))
    "the model has 'a.b', the checkpoint has not"
    """
    for line in map(str.strip, str(error).splitlines()):
        name = line.partition('"')[2].partition('"')[0]
        if line.startswith("Missing key"):
            return f"the model has {name!r}, the checkpoint has not"
        if line.startswith("Unexpected key"):
            return f"the checkpoint has {name!r}, the model has not"
        if line.startswith("size mismatch"):
            return line.rstrip(".")
    return in_a_line(error)


def check_optimizers(optimizers: Iterable[Any]) -> None:
    """Refuse optimizers that were given the settings of others: torch takes those as they come."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            missing = sorted(optimizer.defaults.keys() - group.keys())
            if missing:
                kind = type(optimizer).__name__
                raise misfit(f"{kind} needs {missing[0]!r}, the checkpoint has none")
