from penstock.datamodules.inputs import DataModuleProtocol as DataModuleProtocol
from penstock.datamodules.resolution import (
    ImageResolutionSequenceDataset as ImageResolutionSequenceDataset,
)
from penstock.datamodules.resolution import ResolutionSequenceDataset as ResolutionSequenceDataset
from penstock.datamodules.sequence import SequenceDataset as SequenceDataset
from penstock.datamodules.sequence import default_data_path as default_data_path
from penstock.datamodules.sequence_loaders import PaddedCollation as PaddedCollation
from penstock.datamodules.sequence_loaders import TBPTTDataLoader as TBPTTDataLoader
from penstock.datamodules.sequence_loaders import loader_registry as loader_registry
from penstock.datamodules.universal import UniversalDataModule as UniversalDataModule
