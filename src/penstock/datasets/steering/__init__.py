"""Steering datasets: embedding directories of question-source pairs, for JASPER training."""

from penstock.datasets.steering.building import build_steering_directory
from penstock.datasets.steering.curriculum import Curriculum
from penstock.datasets.steering.dataset import JASPERSteeringDataset
from penstock.datasets.steering.hdf5 import convert_to_hdf5
from penstock.datasets.steering.validation import validate_dataset

__all__ = [
    "Curriculum",
    "JASPERSteeringDataset",
    "build_steering_directory",
    "convert_to_hdf5",
    "validate_dataset",
]
