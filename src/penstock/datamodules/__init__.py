"""Data modules: a dataset and its loaders for training, validation and test."""

from penstock.datamodules.protocol import DataModuleProtocol
from penstock.datamodules.resolution import (
    ImageResolutionSequenceDataset,
    ResolutionSequenceDataset,
)
from penstock.datamodules.sequence import SequenceDataset, default_data_path
from penstock.datamodules.sequence_collation import PaddedCollation
from penstock.datamodules.sequence_loaders import loader_registry
from penstock.datamodules.tbptt import TBPTTDataLoader
from penstock.datamodules.universal import UniversalDataModule

__all__ = [
    "DataModuleProtocol",
    "ImageResolutionSequenceDataset",
    "PaddedCollation",
    "ResolutionSequenceDataset",
    "SequenceDataset",
    "TBPTTDataLoader",
    "UniversalDataModule",
    "default_data_path",
    "loader_registry",
]
