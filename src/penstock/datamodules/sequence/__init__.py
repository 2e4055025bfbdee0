"""Sequence datasets after the conventions of S4, with chunks built in."""

from penstock.datamodules.sequence.base import SequenceDataset, default_data_path
from penstock.datamodules.sequence.loader_keys import loader_registry
from penstock.datamodules.sequence.padding import PaddedCollation
from penstock.datamodules.sequence.resolutions import (
    ImageResolutionSequenceDataset,
    ResolutionSequenceDataset,
)
from penstock.datamodules.sequence.tbptt import TBPTTDataLoader

__all__ = [
    "ImageResolutionSequenceDataset",
    "PaddedCollation",
    "ResolutionSequenceDataset",
    "SequenceDataset",
    "TBPTTDataLoader",
    "default_data_path",
    "loader_registry",
]
