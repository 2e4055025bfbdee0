"""Map-style datasets: read a batch in one call, standardise, augment, replace bad samples."""

from penstock.datasets.augmented import AugmentedDataset, create_augmented_dataset_wrapper
from penstock.datasets.replacement import ReplacingDataset
from penstock.datasets.standardized import StandardizedDataset, compute_standardization

WorkerSafeStandardizedDataset = StandardizedDataset  # every dataset here is
WorkerSafeAugmentedDataset = AugmentedDataset

__all__ = [
    "AugmentedDataset",
    "ReplacingDataset",
    "StandardizedDataset",
    "WorkerSafeAugmentedDataset",
    "WorkerSafeStandardizedDataset",
    "compute_standardization",
    "create_augmented_dataset_wrapper",
]
