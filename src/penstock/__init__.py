"""Penstock feeds PyTorch training.

It never starves the device, never repeats or skips a sample, and never needs the dataset in
memory. Names are imported when they are first used, so that ``import penstock`` stays light.

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
    from penstock.datasets import AugmentedDataset as AugmentedDataset
    from penstock.datasets import JASPERSteeringDataset as JASPERSteeringDataset
    from penstock.datasets import QuantizedAudioDataset as QuantizedAudioDataset
    from penstock.datasets import ReplacingDataset as ReplacingDataset
    from penstock.datasets import SpectrogramFolder as SpectrogramFolder
    from penstock.datasets import StandardizedDataset as StandardizedDataset
    from penstock.datasets import WorkerSafeAugmentedDataset as WorkerSafeAugmentedDataset
    from penstock.datasets import WorkerSafeStandardizedDataset as WorkerSafeStandardizedDataset
    from penstock.datasets import build_steering_directory as build_steering_directory
    from penstock.datasets import compute_standardization as compute_standardization
    from penstock.datasets import convert_to_hdf5 as convert_to_hdf5
    from penstock.datasets import (
        create_augmented_dataset_wrapper as create_augmented_dataset_wrapper,
    )
    from penstock.datasets import read_pixel_table as read_pixel_table
    from penstock.datasets import validate_dataset as validate_dataset
    from penstock.distributed import RankError as RankError
    from penstock.distributed import agree as agree
    from penstock.distributed import agreed as agreed
    from penstock.distributed import together as together
    from penstock.errors import BatchError as BatchError
    from penstock.errors import ConfigError as ConfigError
    from penstock.errors import MissingExtraError as MissingExtraError
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import PlanError as PlanError
    from penstock.errors import SourceError as SourceError
    from penstock.errors import StateError as StateError
    from penstock.errors import WorkerError as WorkerError
    from penstock.keyed import Reading as Reading
    from penstock.keyed import current_epoch as current_epoch
    from penstock.keyed import current_reading as current_reading
    from penstock.keyed import keyed_generator as keyed_generator
    from penstock.keyed import sample_generator as sample_generator
    from penstock.keyed import sample_key as sample_key
    from penstock.keyed import sample_keys as sample_keys
    from penstock.loaders import ChunkedDataLoader as ChunkedDataLoader
    from penstock.loaders import ChunkedSampler as ChunkedSampler
    from penstock.loaders import DataLoaderConfig as DataLoaderConfig
    from penstock.loaders import DataLoaderFactory as DataLoaderFactory
    from penstock.loaders import DataLoaderPerformanceMonitor as DataLoaderPerformanceMonitor
    from penstock.loaders import Loader as Loader
    from penstock.loaders import Machine as Machine
    from penstock.loaders import OptimalDataLoaderFactory as OptimalDataLoaderFactory
    from penstock.loaders import StreamLoader as StreamLoader
    from penstock.loaders import create_loader as create_loader
    from penstock.loaders import set_epoch as set_epoch
    from penstock.loaders import tune as tune
    from penstock.loaders import validate_first_batch as validate_first_batch
    from penstock.loaders import worker_init_fn as worker_init_fn
    from penstock.modules import ChunkedTraining as ChunkedTraining
    from penstock.modules import DataModuleProtocol as DataModuleProtocol
    from penstock.modules import QuantizedAutoregressiveAudio as QuantizedAutoregressiveAudio
    from penstock.modules import ResolutionSequenceDataset as ResolutionSequenceDataset
    from penstock.modules import SequenceDataset as SequenceDataset
    from penstock.modules import TrainerLoader as TrainerLoader
    from penstock.modules import UniversalDataModule as UniversalDataModule
    from penstock.order import BlockOrder as BlockOrder
    from penstock.order import Cursor as Cursor
    from penstock.order import Order as Order
    from penstock.order import Permutation as Permutation
    from penstock.order import Plan as Plan
    from penstock.order import SequentialOrder as SequentialOrder
    from penstock.order import ShuffledOrder as ShuffledOrder
    from penstock.order import Steps as Steps
    from penstock.order import Topology as Topology
    from penstock.order import derive_key as derive_key
    from penstock.report import BenchmarkReport as BenchmarkReport
    from penstock.sources import ArrowSource as ArrowSource
    from penstock.sources import ConcatenatedSource as ConcatenatedSource
    from penstock.sources import DataSplit as DataSplit
    from penstock.sources import Field as Field
    from penstock.sources import FlyVisSim as FlyVisSim
    from penstock.sources import MappedSource as MappedSource
    from penstock.sources import MemorySource as MemorySource
    from penstock.sources import NeuronData as NeuronData
    from penstock.sources import NpySource as NpySource
    from penstock.sources import RangeSource as RangeSource
    from penstock.sources import RecordingSource as RecordingSource
    from penstock.sources import Source as Source
    from penstock.sources import ZarrSource as ZarrSource
    from penstock.sources import ZippedSource as ZippedSource
    from penstock.sources import create_zarr_loader as create_zarr_loader
    from penstock.sources import load_column_slice as load_column_slice
    from penstock.sources import load_metadata as load_metadata
    from penstock.sources import open_source as open_source
    from penstock.sources import write_recording as write_recording
    from penstock.streaming import ChunkLatencyStats as ChunkLatencyStats
    from penstock.streaming import RandomChunkLoader as RandomChunkLoader
    from penstock.streaming import calculate_chunk_params as calculate_chunk_params
    from penstock.streaming import sample_batch_within_chunk as sample_batch_within_chunk
    from penstock.training import CheckpointManager as CheckpointManager
    from penstock.training import TrainingConfig as TrainingConfig
    from penstock.training import TrainingEngine as TrainingEngine
    from penstock.training import cross_val_training as cross_val_training
    from penstock.training import single_fold_training as single_fold_training
    from penstock.transforms import Compose as Compose
    from penstock.transforms import GaussianNoise as GaussianNoise
    from penstock.transforms import SpecAugment as SpecAugment
    from penstock.transforms import Spectrogram as Spectrogram
    from penstock.transforms import Standardize as Standardize
    from penstock.transforms import Transform as Transform
    from penstock.transforms import recommended_augmentation as recommended_augmentation

__version__ = "0.2.0.dev0"

_ROOMS = {
    "penstock.errors": (
        "PenstockError PlanError StateError ConfigError SourceError BatchError WorkerError "
        "MissingExtraError"
    ),
    "penstock.order": (
        "derive_key Permutation Order SequentialOrder ShuffledOrder BlockOrder Steps Topology "
        "Plan Cursor"
    ),
    "penstock.keyed": (
        "Reading current_reading current_epoch sample_key sample_keys sample_generator "
        "keyed_generator"
    ),
    "penstock.sources": (
        "open_source Source MappedSource Field MemorySource NpySource ZarrSource ArrowSource "
        "RecordingSource ConcatenatedSource ZippedSource RangeSource FlyVisSim NeuronData "
        "DataSplit load_column_slice load_metadata create_zarr_loader write_recording"
    ),
    "penstock.transforms": (
        "Transform SpecAugment GaussianNoise Standardize Compose Spectrogram "
        "recommended_augmentation"
    ),
    "penstock.collate": (
        "TaskSpec CollatorRegistry CollatorInfo TextCollator VisionCollator AudioCollator "
        "DefaultCollator LanguageModelingDataCollator VisionDataCollator"
    ),
    "penstock.checks": "BatchSchema TensorSpec checked",
    "penstock.streaming": (
        "RandomChunkLoader ChunkLatencyStats calculate_chunk_params sample_batch_within_chunk"
    ),
    "penstock.datasets": (
        "StandardizedDataset AugmentedDataset WorkerSafeStandardizedDataset "
        "WorkerSafeAugmentedDataset compute_standardization create_augmented_dataset_wrapper "
        "SpectrogramFolder read_pixel_table QuantizedAudioDataset ReplacingDataset "
        "JASPERSteeringDataset validate_dataset build_steering_directory convert_to_hdf5"
    ),
    "penstock.loaders": (
        "Loader ChunkedSampler ChunkedDataLoader StreamLoader DataLoaderConfig DataLoaderFactory "
        "OptimalDataLoaderFactory DataLoaderPerformanceMonitor tune worker_init_fn create_loader "
        "set_epoch validate_first_batch Machine"
    ),
    "penstock.modules": (
        "ChunkedTraining DataModuleProtocol UniversalDataModule TrainerLoader SequenceDataset "
        "QuantizedAutoregressiveAudio ResolutionSequenceDataset"
    ),
    "penstock.distributed": "agree agreed together RankError",
    "penstock.report": "BenchmarkReport",
    "penstock.training": (
        "TrainingConfig CheckpointManager TrainingEngine cross_val_training single_fold_training"
    ),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}
_EXTRA = {"ChunkedTraining": "lightning"}  # names that cannot even be imported without a library


def _public_names() -> list[str]:
    """All names except those whose library is not installed, which is found out when asked."""
    missing = [name for name, library in _EXTRA.items() if find_spec(library) is None]
    return ["__version__", *(name for name in _HOME if name not in missing)]


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
