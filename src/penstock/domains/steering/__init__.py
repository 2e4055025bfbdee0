"""Steering datasets for JASPER training: pairs of question and source embeddings."""

from penstock.domains.steering.build import build_steering_directory as build_steering_directory
from penstock.domains.steering.curriculum import Curriculum as Curriculum
from penstock.domains.steering.dataset import JASPERSteeringDataset as JASPERSteeringDataset
from penstock.domains.steering.files import convert_to_hdf5 as convert_to_hdf5
from penstock.domains.steering.loader import SteeringLoader as SteeringLoader
from penstock.domains.steering.loader import create_loader as create_loader
from penstock.domains.steering.loader import first_batch as first_batch
from penstock.domains.steering.loader import set_epoch as set_epoch
from penstock.domains.steering.loader import validate_first_batch as validate_first_batch
from penstock.domains.steering.validation import validate_dataset as validate_dataset
