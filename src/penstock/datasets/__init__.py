"""Map-style datasets: read a batch in one call, standardise, augment, replace bad samples."""

from penstock.datasets.augmented import AugmentedDataset as AugmentedDataset
from penstock.datasets.augmented import (
    create_augmented_dataset_wrapper as create_augmented_dataset_wrapper,
)
from penstock.datasets.replacement import ReplacingDataset as ReplacingDataset
from penstock.datasets.standardized import StandardizedDataset as StandardizedDataset
from penstock.datasets.standardized import compute_standardization as compute_standardization

WorkerSafeStandardizedDataset = StandardizedDataset  # every dataset here is
WorkerSafeAugmentedDataset = AugmentedDataset
