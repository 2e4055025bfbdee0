"""The data of folds: samples with labels and authors, standardized parts, loaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from penstock.arguments import a_path, array_of, shown
from penstock.datasets import AugmentedDataset, StandardizedDataset, compute_standardization
from penstock.datasets.gather import first_field
from penstock.domains.spectrograms import SpectrogramFolder, read_pixel_table
from penstock.errors import ConfigError, PlanError
from penstock.loaders import Loader
from penstock.order import Indices, derive_key
from penstock.transforms import recommended_augmentation
from penstock.tuning import DataLoaderFactory

# -- samples


@dataclass(frozen=True)
class LabelledData:
    """A dataset, and the class, author and recording of each sample."""

    dataset: Any
    labels: npt.NDArray[np.int64]
    authors: npt.NDArray[Any] | None
    recordings: npt.NDArray[Any] | None


def collect_data(
    data_path: str | Path | None,
    features: npt.ArrayLike | None,
    labels: npt.ArrayLike | None,
    authors: npt.ArrayLike | None,
    groups: npt.ArrayLike | None,
) -> LabelledData:
    """Return the samples of a folder, a table of pixels, or memory.

    Args:
        data_path: A folder for `SpectrogramFolder`, or a file for `read_pixel_table`.
        features: The samples, instead of a path.
        labels: The class of each sample, with ``features``.
        authors: The author of each sample, with ``features``.
        groups: The recording of each sample. None uses those of a folder.

    Raises:
        ConfigError: Arguments are missing or do not fit together.
    """
    if (data_path is None) == (features is None):
        raise ConfigError("pass either data_path=, or features= and labels=")
    dataset: Any
    if data_path is not None and a_path("data_path", data_path, error=ConfigError).is_dir():
        dataset = SpectrogramFolder(data_path)
        classes, authors = dataset.labels, dataset.authors
        groups = dataset.recordings if groups is None else groups
    else:
        if data_path is not None:
            table = read_pixel_table(data_path)
            features, labels, authors = table.features, table.labels, table.authors
        if labels is None:
            raise ConfigError("features= needs labels=, the class of each sample")
        values = array_of("features", features, error=ConfigError)
        if values.dtype.kind not in "biuf" or not values.ndim:
            raise ConfigError(f"features must be numbers, one row per sample, got {shown(values)}")
        classes = _classes(labels)
        if len(values) != len(classes):
            raise ConfigError(
                f"features has {len(values)} samples, labels {len(classes)}: they must be equal"
            )
        x = torch.as_tensor(values, dtype=torch.float32)
        dataset = TensorDataset(x, torch.from_numpy(classes))
    known: list[npt.NDArray[Any] | None] = []
    for name, given in (("authors", authors), ("groups", groups)):
        array = None if given is None else array_of(name, given, error=ConfigError)
        if array is not None and array.shape != classes.shape:
            raise ConfigError(f"{name} has shape {array.shape}, labels {classes.shape}")
        known.append(array)
    return LabelledData(dataset, classes, *known)


def _classes(labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    found = array_of("labels", labels, error=ConfigError)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iuf":
        raise ConfigError(
            f"labels must be the class of each sample, got {found.dtype} of shape {found.shape}"
        )
    if not (np.isfinite(found) & (found == np.floor(found))).all():
        raise ConfigError(f"labels must be whole numbers, got {shown(labels)}")
    return found.astype(np.int64)


def labels_of(dataset: Any) -> npt.NDArray[np.int64]:
    """Return the class of every sample, without reading the samples if possible.

    >>> labels_of([("x", 3), ("y", 5)])
    array([3, 5])
    """
    labels = getattr(dataset, "labels", None)
    if labels is None and isinstance(dataset, TensorDataset):
        labels = dataset.tensors[1].numpy(force=True)
    if labels is None:
        labels = [int(dataset[index][1]) for index in range(len(dataset))]
    return np.asarray(labels, np.int64)[: len(dataset)]


def check_labels(labels: npt.NDArray[np.int64], classes: int) -> None:
    """Raise `PlanError` if a label is not in ``range(classes)``."""
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise PlanError(f"labels must be in [0, {classes}) for num_classes={classes}, got {wrong}")


# -- the parts of a fold


def fold_subsets(
    dataset: Any,
    train: Indices,
    val: Indices,
    config: Mapping[str, Any],
    *,
    classes: int,
    progress: bool | None,
) -> tuple[Any, Any, dict[str, Any]]:
    """Return the training and the validation part, and the statistics of the training part.

    Both are standardized by the statistics of the training part. Only the training part is
    augmented: its raw samples, before they are standardized.
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
    """Return the loaders of both parts.

    Validation drops nothing. Training drops an incomplete last batch, unless it is the only one.
    """
    size = config["batch_size"]
    drop_last = len(train) >= size
    if not config["optimize_dataloaders"]:
        options: dict[str, Any] = {"drop_last": drop_last, "generator": torch.Generator()}
        return DataLoader(train, size, shuffle=True, **options), DataLoader(val, size)
    hints = {"has_standardization": config["standardize"]}
    train_loader = DataLoaderFactory.create_training_loader(
        train,
        batch_size=size,
        has_augmentation=config["spec_augment"] or config["gaussian_noise"],
        drop_last=drop_last,
        seed=config["seed"],
        **hints,
    )
    return train_loader, DataLoaderFactory.create_validation_loader(val, batch_size=size, **hints)


def seek_epoch(loader: Any, epoch: int, seed: int) -> Any:
    """Return a training loader, whose next iteration yields the batches of ``epoch``."""
    if isinstance(loader, Loader):
        loader.seek(epoch)
        return loader
    loader.generator.manual_seed(derive_key(seed, "order", epoch))
    part = loader.dataset
    dataset = part.dataset if isinstance(part, Subset) else part
    getattr(dataset, "set_epoch", lambda _: None)(epoch)
    return loader
