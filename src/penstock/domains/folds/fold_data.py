"""The data of a fold: both parts as they are trained on, and their loaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from penstock.datasets import AugmentedDataset, StandardizedDataset, compute_standardization
from penstock.datasets.gather import first_field
from penstock.loaders import Loader
from penstock.order import Indices, derive_key
from penstock.transforms import recommended_augmentation
from penstock.tuning import DataLoaderFactory


def fold_subsets(
    dataset: Any,
    train: Indices,
    val: Indices,
    config: Mapping[str, Any],
    *,
    classes: int,
    progress: bool | None,
) -> tuple[Any, Any, dict[str, Any]]:
    """Both parts, and the statistics of the training part, by which both are standardised.

    The training part alone is augmented: its raw samples, before they are standardised.
    """
    base, statistics = _augmented(dataset, train, config, classes), {"mean": None, "std": None}
    if not config["standardize"]:
        return Subset(base, train.tolist()), Subset(dataset, val.tolist()), statistics
    mean, std = compute_standardization(dataset, train, progress=progress)
    train_part = StandardizedDataset(base, train, mean, std)
    val_part = StandardizedDataset(dataset, val, mean, std)
    return train_part, val_part, {"mean": mean, "std": std}


def _augmented(dataset: Any, train: Indices, config: Mapping[str, Any], classes: int) -> Any:
    masks, noise = config["spec_augment"], config["gaussian_noise"]
    if not (masks or noise):
        return dataset
    shape = first_field(dataset[int(train[0])]).shape
    size = (shape[-2], shape[-1]) if len(shape) > 1 else (224, 313)
    params = recommended_augmentation(len(train), classes, size)
    chosen = {
        "spec_augment_params": params["spec_augment_params"] if masks else None,
        "gaussian_noise_params": params["gaussian_noise_params"] if noise else None,
    }
    return AugmentedDataset(dataset, chosen, seed=config["seed"])


def fold_loaders(train: Any, val: Any, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """The loaders of both parts; the one place where loaders of folds are made.

    Validation drops nothing. Training leaves out an incomplete last batch, unless it is the only
    one.
    """
    size = config["batch_size"]
    drop_last = len(train) >= size
    if not config["optimize_dataloaders"]:
        options: dict[str, Any] = {"drop_last": drop_last, "generator": torch.Generator()}
        return DataLoader(train, size, shuffle=True, **options), DataLoader(val, size)
    standardizes = config["standardize"]
    train_loader = DataLoaderFactory.create_training_loader(
        train,
        batch_size=size,
        has_augmentation=config["spec_augment"] or config["gaussian_noise"],
        has_standardization=standardizes,
        drop_last=drop_last,
        seed=config["seed"],
    )
    val_loader = DataLoaderFactory.create_validation_loader(
        val, batch_size=size, has_standardization=standardizes
    )
    return train_loader, val_loader


class EpochBatches:
    """The training batches of a given epoch, whatever was read before."""

    def __init__(self, loader: Any, seed: int) -> None:
        self._loader, self._seed = loader, seed

    def __call__(self, epoch: int) -> Any:
        """What to iterate for the batches of ``epoch``."""
        if isinstance(self._loader, Loader):
            self._loader.seek(epoch)
            return self._loader
        self._loader.generator.manual_seed(derive_key(self._seed, "order", epoch))
        part = self._loader.dataset
        dataset = part.dataset if isinstance(part, Subset) else part
        getattr(dataset, "set_epoch", lambda _: None)(epoch)
        return self._loader
