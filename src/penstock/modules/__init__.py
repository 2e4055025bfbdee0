"""Trainers and data modules: what connects loaders to the training loops of others.

Names are imported when they are first used: none of the libraries behind them is needed by the
others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.modules.lightning import ChunkedTraining as ChunkedTraining

_HOME = {"ChunkedTraining": "penstock.modules.lightning"}

__all__ = ["ChunkedTraining"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'penstock.modules' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
