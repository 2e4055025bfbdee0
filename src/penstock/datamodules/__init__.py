"""Data modules: datasets and their loaders for training, validation and test."""

from penstock.datamodules.protocol import DataModuleProtocol
from penstock.datamodules.sequence import (
    ImageResolutionSequenceDataset,
    ResolutionSequenceDataset,
    SequenceDataset,
    TBPTTDataLoader,
)
from penstock.datamodules.universal import UniversalDataModule

__all__ = [
    "DataModuleProtocol",
    "ImageResolutionSequenceDataset",
    "ResolutionSequenceDataset",
    "SequenceDataset",
    "TBPTTDataLoader",
    "UniversalDataModule",
]
