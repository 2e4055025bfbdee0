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
    from penstock.modules.sequence import (
        ImageResolutionSequenceDataset as ImageResolutionSequenceDataset,
    )
    from penstock.modules.sequence import (
        QuantizedAutoregressiveAudio as QuantizedAutoregressiveAudio,
    )
    from penstock.modules.sequence import ResolutionSequenceDataset as ResolutionSequenceDataset
    from penstock.modules.sequence import SequenceDataset as SequenceDataset
    from penstock.modules.sequence import (
        SpeechCommands09Autoregressive as SpeechCommands09Autoregressive,
    )
    from penstock.modules.sequence import TBPTTDataLoader as TBPTTDataLoader
    from penstock.modules.universal import UniversalDataModule as UniversalDataModule

_ROOMS = {
    "huggingface": "TrainerLoader",
    "lightning": "ChunkedTraining",
    "protocol": "DataModuleProtocol",
    "replay": "ReplayLoader",
    "sequence": (
        "ImageResolutionSequenceDataset QuantizedAutoregressiveAudio ResolutionSequenceDataset "
        "SequenceDataset SpeechCommands09Autoregressive TBPTTDataLoader"
    ),
    "universal": "UniversalDataModule",
}
_HOME = {name: f"{__name__}.{room}" for room, names in _ROOMS.items() for name in names.split()}

__all__ = [*_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'penstock.modules' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
