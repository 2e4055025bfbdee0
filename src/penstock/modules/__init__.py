"""Trainers and data modules: what connects loaders to the training loops of others.

Names are imported when they are first used: none of the libraries behind them is needed by the
others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.modules.huggingface import TrainerLoader as TrainerLoader
    from penstock.modules.lightning import ChunkedTraining as ChunkedTraining
    from penstock.modules.protocol import DataModuleProtocol as DataModuleProtocol
    from penstock.modules.replay import ReplayLoader as ReplayLoader
    from penstock.modules.universal import UniversalDataModule as UniversalDataModule

_HOME = {
    "ChunkedTraining": "penstock.modules.lightning",
    "DataModuleProtocol": "penstock.modules.protocol",
    "ReplayLoader": "penstock.modules.replay",
    "TrainerLoader": "penstock.modules.huggingface",
    "UniversalDataModule": "penstock.modules.universal",
}

__all__ = [
    "ChunkedTraining",
    "DataModuleProtocol",
    "ReplayLoader",
    "TrainerLoader",
    "UniversalDataModule",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'penstock.modules' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
