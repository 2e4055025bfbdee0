"""The data of folds: samples with labels and authors, standardized parts, loaders."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset, TensorDataset

from penstock.arguments import (
    LARGEST_INTEGER,
    LARGEST_SEED,
    a_path,
    array_of,
    flag,
    mapping,
    real_number,
    shown,
    whole_number,
)
from penstock.domains.spectrograms import SpectrogramFolder, read_pixel_table
from penstock.errors import ConfigError, PlanError
from penstock.loaders import Loader
from penstock.order import derive_key
from penstock.registry import unknown_name

log = logging.getLogger("penstock")

COMMON: Final[dict[str, Any]] = {
    "num_epochs": 220,
    "batch_size": 24,
    "learning_rate": 0.001,
    "use_class_weights": False,
    "early_stopping": 35,  # epochs without a lower validation loss; 0 never stops early
    "standardize": True,
    "spec_augment": False,
    "gaussian_noise": False,
    "optimize_dataloaders": True,  # False: torch's own loaders
    "benchmark_performance": False,  # True: add measurements of the loaders to the result
    "l2_regularization": 0.0,
    "gradient_clipping": 0.0,  # largest norm of the gradients; 0 disables clipping
    "mixed_precision": False,  # forward passes in bfloat16
    "seed": 42,  # of weights, order, augmentation and dropout
}
CROSS_VALIDATION: Final[dict[str, Any]] = COMMON | {
    "k_folds": 4,
    "aggregate_predictions": True,
    "max_split_attempts": 30000,
    "min_val_segments": 0,
}
SINGLE_FOLD: Final[dict[str, Any]] = COMMON | {
    "num_epochs": 250,
    "batch_size": 48,
    "test_size": 0.2,  # share of the segments
    "random_state": 435,
    "max_split_attempts": 10000,
    "min_test_segments": 5,
    "l2_regularization": 1e-4,
}
ENGINE: Final[dict[str, Any]] = COMMON | {"aggregate_predictions": True}
ALL: Final = CROSS_VALIDATION | SINGLE_FOLD
# accepted, so that older configurations still run
UNUSED: Final = {
    "standardize_sample_size": "statistics are exact",
    "parallel_folds": "folds run one after the other, so that results can be repeated",
    "max_parallel_folds": "folds run one after the other, so that results can be repeated",
    "debug_dataloaders": "the chosen loaders are logged",
}
_MINIMUM: Final = {"num_epochs": 1, "batch_size": 1, "k_folds": 2, "max_split_attempts": 1}
_MAXIMUM: Final = {"seed": LARGEST_SEED, "random_state": 2**32 - 1}  # the latter by scikit-learn


def fold_config(
    given: Mapping[str, Any] | None,
    defaults: Mapping[str, Any],
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return ``defaults`` updated with the settings that the user passed.

    Args:
        given: The user's settings.
        defaults: All settings and their default values.
        known: The names that may be passed. None means those of ``defaults``.

    Raises:
        ConfigError: A name is unknown or a value is invalid.

    >>> fold_config({"batch_size": 8}, CROSS_VALIDATION)["k_folds"]
    4
    >>> fold_config({"batchsize": 8}, CROSS_VALIDATION)
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: unknown setting 'batchsize': did you mean 'batch_size'? ...
    """
    config, known = dict(defaults), known or defaults
    settings = {} if given is None else mapping("config", given, error=ConfigError)
    for name, value in settings.items():
        if name in UNUSED:
            log.info("setting %r is not used: %s", name, UNUSED[name])
        elif name not in known:
            raise ConfigError(unknown_name("setting", name, known))
        else:
            config[name] = _checked(name, value)
    return config


def _checked(name: str, value: Any) -> Any:
    default = ALL[name]
    if isinstance(default, bool):
        return flag(name, value, error=ConfigError)
    if isinstance(default, float):
        number = real_number(name, value, minimum=0, error=ConfigError)
        if name == "test_size" and not 0 < number < 1:
            raise ConfigError(f"test_size must be a share between 0 and 1, got {value!r}")
        return number
    least, most = _MINIMUM.get(name, 0), _MAXIMUM.get(name, LARGEST_INTEGER)
    return whole_number(name, value, minimum=least, maximum=most, error=ConfigError)


# -- samples


@dataclass(frozen=True)
class LabelledData:
    """A dataset, and the class, author and recording of each sample."""

    dataset: Any
    labels: npt.NDArray[np.int64]
    authors: npt.NDArray[Any] | None
    recordings: npt.NDArray[Any] | None

    def required_authors(self) -> npt.NDArray[Any]:
        """Return the authors; raise `PlanError` if there are none."""
        if self.authors is None:
            raise PlanError("a split by author needs authors=, one for each sample")
        return self.authors


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
            raise ConfigError(f"features has {len(values)} samples, labels {len(classes)}")
        x = torch.as_tensor(values, dtype=torch.float32)
        dataset = TensorDataset(x, torch.from_numpy(classes))
    known: dict[str, npt.NDArray[Any]] = {}
    for name, given in (("authors", authors), ("groups", groups)):
        if given is not None:
            known[name] = array_of(name, given, error=ConfigError)
            if known[name].shape != classes.shape:
                found = known[name].shape
                raise ConfigError(f"{name} has shape {found}, labels {classes.shape}")
    return LabelledData(dataset, classes, known.get("authors"), known.get("groups"))


def _classes(labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    found = array_of("labels", labels, error=ConfigError)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iuf":
        raise ConfigError(f"labels must be one class per sample, got {found.dtype} {found.shape}")
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
