from penstock.datasets.augmented import AugmentedDataset as AugmentedDataset
from penstock.datasets.augmented import WorkerSafeAugmentedDataset as WorkerSafeAugmentedDataset
from penstock.datasets.augmented import (
    create_augmented_dataset_wrapper as create_augmented_dataset_wrapper,
)
from penstock.datasets.mixture import Mixture as Mixture
from penstock.datasets.mixture import balanced as balanced
from penstock.datasets.packed import pack as pack
from penstock.datasets.replacement import ReplacingDataset as ReplacingDataset
from penstock.datasets.standardized import StandardizedDataset as StandardizedDataset
from penstock.datasets.standardized import (
    WorkerSafeStandardizedDataset as WorkerSafeStandardizedDataset,
)
from penstock.datasets.standardized import compute_standardization as compute_standardization
