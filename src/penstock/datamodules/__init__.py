"""Data modules: a dataset and its loaders for training, validation and test."""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.datamodules.protocol import DataModuleProtocol as DataModuleProtocol
    from penstock.datamodules.resolution import (
        ImageResolutionSequenceDataset as ImageResolutionSequenceDataset,
    )
    from penstock.datamodules.resolution import (
        ResolutionSequenceDataset as ResolutionSequenceDataset,
    )
    from penstock.datamodules.sequence import SequenceDataset as SequenceDataset
    from penstock.datamodules.sequence import default_data_path as default_data_path
    from penstock.datamodules.sequence_collation import PaddedCollation as PaddedCollation
    from penstock.datamodules.sequence_loaders import TBPTTDataLoader as TBPTTDataLoader
    from penstock.datamodules.sequence_loaders import loader_registry as loader_registry
    from penstock.datamodules.universal import UniversalDataModule as UniversalDataModule

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "protocol": "DataModuleProtocol",
        "resolution": "ImageResolutionSequenceDataset ResolutionSequenceDataset",
        "sequence": "SequenceDataset default_data_path",
        "sequence_collation": "PaddedCollation",
        "sequence_loaders": "TBPTTDataLoader loader_registry",
        "universal": "UniversalDataModule",
    },
)
