"""Datasets: samples for torch's loaders and ours, a batch in one go where that can be."""

from penstock.datasets.steering import (
    JASPERSteeringDataset,
    build_steering_directory,
    convert_to_hdf5,
    validate_dataset,
)

__all__ = [
    "JASPERSteeringDataset",
    "build_steering_directory",
    "convert_to_hdf5",
    "validate_dataset",
]
