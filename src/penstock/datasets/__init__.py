"""Datasets: samples for torch's loaders and ours, a batch in one go where that can be."""

from penstock.datasets.audio import QuantizedAudioDataset
from penstock.datasets.augmented import AugmentedDataset, create_augmented_dataset_wrapper
from penstock.datasets.metadata import read_pixel_table
from penstock.datasets.replacing import ReplacingDataset
from penstock.datasets.spectrograms import SpectrogramFolder
from penstock.datasets.standardized import StandardizedDataset
from penstock.datasets.statistics import compute_standardization
from penstock.datasets.steering import (
    JASPERSteeringDataset,
    build_steering_directory,
    convert_to_hdf5,
    validate_dataset,
)

WorkerSafeStandardizedDataset = StandardizedDataset  # every dataset here is
WorkerSafeAugmentedDataset = AugmentedDataset

__all__ = [
    "AugmentedDataset",
    "JASPERSteeringDataset",
    "QuantizedAudioDataset",
    "ReplacingDataset",
    "SpectrogramFolder",
    "StandardizedDataset",
    "WorkerSafeAugmentedDataset",
    "WorkerSafeStandardizedDataset",
    "build_steering_directory",
    "compute_standardization",
    "convert_to_hdf5",
    "create_augmented_dataset_wrapper",
    "read_pixel_table",
    "validate_dataset",
]
