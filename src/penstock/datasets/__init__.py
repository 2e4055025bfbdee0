"""Map-style datasets: read a batch in one call, standardise, augment, mix, pack, replace."""

from penstock.datasets.augmented import AugmentedDataset, create_augmented_dataset_wrapper
from penstock.datasets.mixture import Mixture, balanced
from penstock.datasets.packed import pack
from penstock.datasets.replacement import ReplacingDataset
from penstock.datasets.standardized import StandardizedDataset, compute_standardization

WorkerSafeStandardizedDataset = StandardizedDataset  # every dataset here is
WorkerSafeAugmentedDataset = AugmentedDataset

__all__ = [
    "AugmentedDataset",
    "Mixture",
    "ReplacingDataset",
    "StandardizedDataset",
    "WorkerSafeAugmentedDataset",
    "WorkerSafeStandardizedDataset",
    "balanced",
    "compute_standardization",
    "create_augmented_dataset_wrapper",
    "pack",
]
