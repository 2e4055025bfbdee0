"""Map-style datasets: read a batch in one call, standardise, augment, mix, pack, replace."""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
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

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "augmented": (
            "AugmentedDataset WorkerSafeAugmentedDataset create_augmented_dataset_wrapper"
        ),
        "mixture": "Mixture balanced",
        "packed": "pack",
        "replacement": "ReplacingDataset",
        "standardized": (
            "StandardizedDataset WorkerSafeStandardizedDataset compute_standardization"
        ),
    },
)
