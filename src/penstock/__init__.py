"""Penstock: data loading for PyTorch.

It reads ahead so that the device never waits, reads every sample exactly once per epoch, also after
resuming, and never needs the whole dataset in memory. Names are imported when they are first used,
so that ``import penstock`` is fast.

>>> from penstock import Permutation
>>> len(Permutation(10**12, key=7))
1000000000000
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock import errors

if TYPE_CHECKING:
    from penstock.checks import BatchSchema as BatchSchema
    from penstock.checks import TensorSpec as TensorSpec
    from penstock.checks import checked as checked
    from penstock.collate import AudioCollator as AudioCollator
    from penstock.collate import CollatorInfo as CollatorInfo
    from penstock.collate import CollatorRegistry as CollatorRegistry
    from penstock.collate import DefaultCollator as DefaultCollator
    from penstock.collate import LanguageModelingDataCollator as LanguageModelingDataCollator
    from penstock.collate import TaskSpec as TaskSpec
    from penstock.collate import TextCollator as TextCollator
    from penstock.collate import VisionCollator as VisionCollator
    from penstock.collate import VisionDataCollator as VisionDataCollator
    from penstock.datamodules import DataModuleProtocol as DataModuleProtocol
    from penstock.datamodules import ResolutionSequenceDataset as ResolutionSequenceDataset
    from penstock.datamodules import SequenceDataset as SequenceDataset
    from penstock.datamodules import UniversalDataModule as UniversalDataModule
    from penstock.datasets import AugmentedDataset as AugmentedDataset
    from penstock.datasets import Mixture as Mixture
    from penstock.datasets import ReplacingDataset as ReplacingDataset
    from penstock.datasets import StandardizedDataset as StandardizedDataset
    from penstock.datasets import WorkerSafeAugmentedDataset as WorkerSafeAugmentedDataset
    from penstock.datasets import WorkerSafeStandardizedDataset as WorkerSafeStandardizedDataset
    from penstock.datasets import balanced as balanced
    from penstock.datasets import compute_standardization as compute_standardization
    from penstock.datasets import (
        create_augmented_dataset_wrapper as create_augmented_dataset_wrapper,
    )
    from penstock.datasets import pack as pack
    from penstock.distributed import RankError as RankError
    from penstock.distributed import agree as agree
    from penstock.distributed import agreed as agreed
    from penstock.distributed import together as together
    from penstock.domains.audio import QuantizedAudioDataset as QuantizedAudioDataset
    from penstock.domains.audio import QuantizedAutoregressiveAudio as QuantizedAutoregressiveAudio
    from penstock.domains.folds import TrainingEngine as TrainingEngine
    from penstock.domains.folds import cross_val_training as cross_val_training
    from penstock.domains.folds import single_fold_training as single_fold_training
    from penstock.domains.recording import ChunkLatencyStats as ChunkLatencyStats
    from penstock.domains.recording import DataSplit as DataSplit
    from penstock.domains.recording import FlyVisSim as FlyVisSim
    from penstock.domains.recording import NeuronData as NeuronData
    from penstock.domains.recording import RandomChunkLoader as RandomChunkLoader
    from penstock.domains.recording import RecordingSource as RecordingSource
    from penstock.domains.recording import calculate_chunk_params as calculate_chunk_params
    from penstock.domains.recording import create_zarr_loader as create_zarr_loader
    from penstock.domains.recording import load_column_slice as load_column_slice
    from penstock.domains.recording import load_metadata as load_metadata
    from penstock.domains.recording import sample_batch_within_chunk as sample_batch_within_chunk
    from penstock.domains.recording import write_recording as write_recording
    from penstock.domains.spectrograms import SpectrogramFolder as SpectrogramFolder
    from penstock.domains.spectrograms import read_pixel_table as read_pixel_table
    from penstock.domains.steering import JASPERSteeringDataset as JASPERSteeringDataset
    from penstock.domains.steering import build_steering_directory as build_steering_directory
    from penstock.domains.steering import convert_to_hdf5 as convert_to_hdf5
    from penstock.domains.steering import create_loader as create_loader
    from penstock.domains.steering import set_epoch as set_epoch
    from penstock.domains.steering import validate_dataset as validate_dataset
    from penstock.domains.steering import validate_first_batch as validate_first_batch
    from penstock.errors import BatchError as BatchError
    from penstock.errors import ConfigError as ConfigError
    from penstock.errors import MissingExtraError as MissingExtraError
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import PlanError as PlanError
    from penstock.errors import SourceError as SourceError
    from penstock.errors import StateError as StateError
    from penstock.errors import WorkerError as WorkerError
    from penstock.integrations.huggingface import TrainerLoader as TrainerLoader
    from penstock.integrations.lightning import ChunkedTraining as ChunkedTraining
    from penstock.keyed import Reading as Reading
    from penstock.keyed import current_epoch as current_epoch
    from penstock.keyed import current_reading as current_reading
    from penstock.keyed import keyed_generator as keyed_generator
    from penstock.keyed import sample_generator as sample_generator
    from penstock.keyed import sample_key as sample_key
    from penstock.keyed import sample_keys as sample_keys
    from penstock.loaders import ChunkedDataLoader as ChunkedDataLoader
    from penstock.loaders import ChunkedSampler as ChunkedSampler
    from penstock.loaders import Loader as Loader
    from penstock.loaders import ReplayLoader as ReplayLoader
    from penstock.loaders import StreamLoader as StreamLoader
    from penstock.loaders import worker_init_fn as worker_init_fn
    from penstock.order import BlockOrder as BlockOrder
    from penstock.order import Cursor as Cursor
    from penstock.order import Occurrence as Occurrence
    from penstock.order import Order as Order
    from penstock.order import Permutation as Permutation
    from penstock.order import Plan as Plan
    from penstock.order import SequentialOrder as SequentialOrder
    from penstock.order import ShuffledOrder as ShuffledOrder
    from penstock.order import Steps as Steps
    from penstock.order import Topology as Topology
    from penstock.order import derive_key as derive_key
    from penstock.ragged import Ragged as Ragged
    from penstock.report import BenchmarkReport as BenchmarkReport
    from penstock.sources import ArrowSource as ArrowSource
    from penstock.sources import Field as Field
    from penstock.sources import MappedSource as MappedSource
    from penstock.sources import MemorySource as MemorySource
    from penstock.sources import NpySource as NpySource
    from penstock.sources import Source as Source
    from penstock.sources import Statistics as Statistics
    from penstock.sources import ZarrSource as ZarrSource
    from penstock.sources import concatenate as concatenate
    from penstock.sources import open_source as open_source
    from penstock.sources import zip_sources as zip_sources
    from penstock.training import CheckpointManager as CheckpointManager
    from penstock.training import TrainingConfig as TrainingConfig
    from penstock.transforms import Compose as Compose
    from penstock.transforms import GaussianNoise as GaussianNoise
    from penstock.transforms import SpecAugment as SpecAugment
    from penstock.transforms import Spectrogram as Spectrogram
    from penstock.transforms import Standardize as Standardize
    from penstock.transforms import Transform as Transform
    from penstock.transforms import recommended_augmentation as recommended_augmentation
    from penstock.tuning import DataLoaderConfig as DataLoaderConfig
    from penstock.tuning import DataLoaderFactory as DataLoaderFactory
    from penstock.tuning import DataLoaderPerformanceMonitor as DataLoaderPerformanceMonitor
    from penstock.tuning import Machine as Machine
    from penstock.tuning import OptimalDataLoaderFactory as OptimalDataLoaderFactory
    from penstock.tuning import tune as tune

__version__ = "0.2.0.dev0"

# what most programs need: in ``__all__`` and in ``dir(penstock)``
_EXPORTS = {
    "penstock.errors": "PenstockError",
    "penstock.loaders": (
        "ChunkedDataLoader ChunkedSampler Loader ReplayLoader StreamLoader worker_init_fn"
    ),
    "penstock.datasets": "Mixture pack",
    "penstock.sources": "Source concatenate open_source zip_sources",
    "penstock.order": "BlockOrder Order ShuffledOrder",
    "penstock.keyed": "keyed_generator",
    "penstock.ragged": "Ragged",
    "penstock.collate": "CollatorRegistry TaskSpec",
    "penstock.tuning": ("DataLoaderConfig DataLoaderFactory DataLoaderPerformanceMonitor tune"),
    "penstock.datamodules": "SequenceDataset UniversalDataModule",
    "penstock.integrations.huggingface": "TrainerLoader",
    "penstock.integrations.lightning": "ChunkedTraining",
    "penstock.domains.recording": "RandomChunkLoader",
    "penstock.training": "CheckpointManager TrainingConfig",
}
# importable from here too; the documentation imports these from their package
_ALSO = {
    "penstock.errors": (
        "BatchError ConfigError MissingExtraError PlanError SourceError StateError WorkerError"
    ),
    "penstock.order": (
        "Cursor Occurrence Permutation Plan SequentialOrder Steps Topology derive_key"
    ),
    "penstock.keyed": (
        "Reading current_epoch current_reading sample_generator sample_key sample_keys"
    ),
    "penstock.sources": (
        "ArrowSource Field MappedSource MemorySource NpySource Statistics ZarrSource"
    ),
    "penstock.transforms": (
        "Compose GaussianNoise SpecAugment Spectrogram Standardize Transform "
        "recommended_augmentation"
    ),
    "penstock.collate": (
        "AudioCollator CollatorInfo DefaultCollator LanguageModelingDataCollator TextCollator "
        "VisionCollator VisionDataCollator"
    ),
    "penstock.checks": "BatchSchema TensorSpec checked",
    "penstock.distributed": "RankError agree agreed together",
    "penstock.tuning": "Machine OptimalDataLoaderFactory",
    "penstock.report": "BenchmarkReport",
    "penstock.datamodules": "DataModuleProtocol ResolutionSequenceDataset",
    "penstock.domains.recording": (
        "ChunkLatencyStats DataSplit FlyVisSim NeuronData RecordingSource "
        "calculate_chunk_params create_zarr_loader load_column_slice load_metadata "
        "sample_batch_within_chunk write_recording"
    ),
    "penstock.datasets": (
        "AugmentedDataset ReplacingDataset StandardizedDataset WorkerSafeAugmentedDataset "
        "WorkerSafeStandardizedDataset balanced compute_standardization "
        "create_augmented_dataset_wrapper"
    ),
    "penstock.domains.spectrograms": "SpectrogramFolder read_pixel_table",
    "penstock.domains.audio": "QuantizedAudioDataset QuantizedAutoregressiveAudio",
    "penstock.domains.steering": (
        "JASPERSteeringDataset build_steering_directory convert_to_hdf5 create_loader "
        "set_epoch validate_dataset validate_first_batch"
    ),
    "penstock.domains.folds": "TrainingEngine cross_val_training single_fold_training",
}
_PUBLIC = {name: module for module, names in _EXPORTS.items() for name in names.split()}
_HOME = _PUBLIC | {name: module for module, names in _ALSO.items() for name in names.split()}
_EXTRA = {"ChunkedTraining": "lightning"}  # names that cannot even be imported without a library


def _public_names() -> list[str]:
    """The names of `_EXPORTS`, without those whose library is not installed."""
    missing = [name for name, library in _EXTRA.items() if find_spec(library) is None]
    return ["__version__", *(name for name in _PUBLIC if name not in missing)]


def __getattr__(name: str) -> Any:
    if name == "__all__":
        globals()[name] = _public_names()
        return globals()[name]
    if name not in _HOME:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOME[name]), name)
    except errors.MissingExtraError as error:
        # an import statement reports why; hasattr, inspect and help expect an AttributeError
        if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
            raise
        raise errors.MissingNameError(str(error)) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_public_names())
