"""Sequence datasets after the conventions of S4, with chunks built in."""

from penstock.modules.sequence.audio import (
    QuantizedAutoregressiveAudio,
    SpeechCommands09Autoregressive,
)
from penstock.modules.sequence.base import SequenceDataset, default_data_path
from penstock.modules.sequence.loader_keys import loader_registry
from penstock.modules.sequence.padding import PaddedCollation
from penstock.modules.sequence.resolutions import (
    ImageResolutionSequenceDataset,
    ResolutionSequenceDataset,
)
from penstock.modules.sequence.tbptt import TBPTTDataLoader

__all__ = [
    "ImageResolutionSequenceDataset",
    "PaddedCollation",
    "QuantizedAutoregressiveAudio",
    "ResolutionSequenceDataset",
    "SequenceDataset",
    "SpeechCommands09Autoregressive",
    "TBPTTDataLoader",
    "default_data_path",
    "loader_registry",
]
