"""Steering datasets for JASPER training: pairs of question and source embeddings."""

from penstock.domains.steering.build import build_steering_directory
from penstock.domains.steering.curriculum import Curriculum
from penstock.domains.steering.dataset import JASPERSteeringDataset
from penstock.domains.steering.files import convert_to_hdf5
from penstock.domains.steering.loader import (
    SteeringLoader,
    create_loader,
    first_batch,
    set_epoch,
    validate_first_batch,
)
from penstock.domains.steering.validation import validate_dataset

__all__ = [
    "Curriculum",
    "JASPERSteeringDataset",
    "SteeringLoader",
    "build_steering_directory",
    "convert_to_hdf5",
    "create_loader",
    "first_batch",
    "set_epoch",
    "validate_dataset",
    "validate_first_batch",
]
