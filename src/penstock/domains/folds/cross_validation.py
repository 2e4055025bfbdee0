"""Training with folds and single splits by author."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import TensorDataset

from penstock.arguments import a_path, array_of, flag, shown
from penstock.datasets.standardized import as_indices
from penstock.domains.folds.engine import TrainingEngine
from penstock.domains.folds.fold_config import CROSS_VALIDATION, SINGLE_FOLD, fold_config
from penstock.domains.folds.splits import author_folds, author_split, check_split
from penstock.domains.spectrograms import SpectrogramFolder, read_pixel_table
from penstock.errors import ConfigError, PlanError
from penstock.extras import optional
from penstock.order import Indices


def cross_val_training(
    data_path: str | Path | None = None,
    features: npt.ArrayLike | None = None,
    labels: npt.ArrayLike | None = None,
    authors: npt.ArrayLike | None = None,
    model_class: Callable[..., nn.Module] | None = None,
    num_classes: int | None = None,
    config: Mapping[str, Any] | None = None,
    spec_augment: bool = False,
    gaussian_noise: bool = False,
    precomputed_splits: Any = None,
    *,
    groups: npt.ArrayLike | None = None,
    run_directory: str | Path | None = None,
    progress: bool | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train and judge a model on k folds by author; ``(results, best_results)``.

    ``results`` has ``fold_results`` (``fold_1`` ...), ``summary`` and ``config``; ``best_results``
    the best ``accuracies``, ``f1s`` and ``losses`` of each fold.

    Args:
        data_path: a folder for `SpectrogramFolder`, or a table for `read_pixel_table`.
        features: the samples themselves, instead; ``(n, channels, bins, frames)``, say.
        labels: the class of each sample.
        authors: of each sample; none is in two parts of a fold.
        model_class: called with ``num_classes=``.
        num_classes: None is the largest label and one.
        config: settings by name, over the defaults.
        spec_augment: mask the training part's spectrograms.
        gaussian_noise: add noise to the training part's samples.
        precomputed_splits: ``(folds, score, seed)``, as `author_folds` gives it.
        groups: the recording of each sample, whose segments then vote.
        run_directory: where checkpoints go; a run that ended there goes on.
        progress: None shows bars on a terminal.
    """
    settings = _settings(config, CROSS_VALIDATION, spec_augment, gaussian_noise)
    data = _gather_data(data_path, features, labels, authors, groups)
    if precomputed_splits is not None:
        folds = [_parts("precomputed_splits", each, data) for each in _first(precomputed_splits)]
    else:
        folds = author_folds(
            data.labels,
            _known(data.authors),
            settings["k_folds"],
            max_attempts=settings["max_split_attempts"],
            min_val_segments=settings["min_val_segments"],
            progress=progress,
        ).folds
    engine = _engine(model_class, num_classes, data, settings, run_directory, progress)
    return engine.run_cross_validation(data.dataset, folds, groups=data.recordings)


def single_fold_training(
    data_path: str | Path | None = None,
    features: npt.ArrayLike | None = None,
    labels: npt.ArrayLike | None = None,
    authors: npt.ArrayLike | None = None,
    model_class: Callable[..., nn.Module] | None = None,
    num_classes: int | None = None,
    config: Mapping[str, Any] | None = None,
    use_predefined_split: bool = True,
    spec_augment: bool = False,
    gaussian_noise: bool = False,
    precomputed_split: Any = None,
    *,
    groups: npt.ArrayLike | None = None,
    run_directory: str | Path | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Train and judge a model on one split; what `cross_val_training` tells of one fold.

    Args:
        data_path: as for `cross_val_training`, like all that is not named here.
        features: see there.
        labels: see there.
        authors: see there.
        model_class: see there.
        num_classes: see there.
        config: settings by name, over the defaults.
        use_predefined_split: split by author; False splits at random, class by class.
        spec_augment: see there.
        gaussian_noise: see there.
        precomputed_split: ``(train, val, score)``, as `author_split` gives it.
        groups: see there.
        run_directory: see there.
        progress: see there.
    """
    settings = _settings(config, SINGLE_FOLD, spec_augment, gaussian_noise)
    data = _gather_data(data_path, features, labels, authors, groups)
    if precomputed_split is not None:
        if not isinstance(precomputed_split, tuple | list):
            raise ConfigError(
                f"precomputed_split must be (train, val, score), got {shown(precomputed_split)}"
            )
        train, val = _parts("precomputed_split", precomputed_split[:2], data)
    elif flag("use_predefined_split", use_predefined_split, error=ConfigError):
        train, val, _ = author_split(
            data.labels,
            _known(data.authors),
            settings["test_size"],
            random_state=settings["random_state"],
            max_attempts=settings["max_split_attempts"],
            min_test_segments=settings["min_test_segments"],
            progress=progress,
        )
    else:
        train, val = _stratified(data.labels, settings["test_size"], settings["random_state"])
    engine = _engine(model_class, num_classes, data, settings, run_directory, progress)
    return engine.run_single_fold(data.dataset, train, val, groups=data.recordings)


@dataclass(frozen=True)
class _Data:
    dataset: Any
    labels: npt.NDArray[np.int64]
    authors: npt.NDArray[Any] | None
    recordings: npt.NDArray[Any] | None


def _gather_data(
    data_path: str | Path | None,
    features: npt.ArrayLike | None,
    labels: npt.ArrayLike | None,
    authors: npt.ArrayLike | None,
    groups: npt.ArrayLike | None,
) -> _Data:
    """The samples, from a folder, a table or memory, and what is known of each."""
    if (data_path is None) == (features is None):
        raise ConfigError("give data_path=, or features= and labels=: one of the two")
    recordings = groups
    if data_path is not None and a_path("data_path", data_path, error=ConfigError).is_dir():
        folder = SpectrogramFolder(data_path)
        recordings = folder.recordings if groups is None else groups
        return _checked(folder, folder.labels, folder.authors, recordings)
    if data_path is not None:
        table = read_pixel_table(data_path)
        features, labels, authors = table.features, table.labels, table.authors
    if labels is None:
        raise ConfigError("features= needs labels=, the class of each sample")
    values = array_of("features", features, error=ConfigError)
    if values.dtype.kind not in "biuf" or not values.ndim:
        raise ConfigError(f"features must be numbers, a row for each sample, got {shown(features)}")
    x, y = torch.as_tensor(values, dtype=torch.float32), _classes(labels)
    if len(x) != len(y):
        raise ConfigError(f"features has {len(x)} samples, labels {len(y)}: they must be as many")
    return _checked(TensorDataset(x, torch.from_numpy(y)), y, authors, recordings)


def _checked(
    dataset: Any,
    labels: npt.NDArray[np.int64],
    authors: npt.ArrayLike | None,
    recordings: npt.ArrayLike | None,
) -> _Data:
    told = {"authors": authors, "groups": recordings}
    arrays = {
        name: None if each is None else array_of(name, each, error=ConfigError)
        for name, each in told.items()
    }
    for name, array in arrays.items():
        if array is not None and array.shape != labels.shape:
            raise ConfigError(f"{name} has shape {array.shape}, labels {labels.shape}")
    return _Data(dataset, labels, arrays["authors"], arrays["groups"])


def _classes(labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    found = array_of("labels", labels, error=ConfigError)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iuf":
        raise ConfigError(
            f"labels must be the class of each sample, got {found.dtype} of shape {found.shape}"
        )
    if not (np.isfinite(found) & (found == np.floor(found))).all():
        raise ConfigError(f"labels must be whole numbers, got {shown(labels)}")
    return found.astype(np.int64)


def _settings(
    config: Mapping[str, Any] | None, defaults: Mapping[str, Any], masks: bool, noise: bool
) -> dict[str, Any]:
    flag("spec_augment", masks, error=ConfigError)
    flag("gaussian_noise", noise, error=ConfigError)
    return fold_config(config, {**defaults, "spec_augment": masks, "gaussian_noise": noise})


def _engine(
    model_class: Callable[..., nn.Module] | None,
    num_classes: int | None,
    data: _Data,
    settings: dict[str, Any],
    run_directory: str | Path | None,
    progress: bool | None,
) -> TrainingEngine:
    if model_class is None:
        raise ConfigError("give model_class=, what is called with num_classes= for a new model")
    classes = int(data.labels.max()) + 1 if num_classes is None else num_classes
    return TrainingEngine(
        model_class, classes, settings, run_directory=run_directory, progress=progress
    )


def _first(splits: Any) -> Any:
    if (
        not isinstance(splits, tuple | list)
        or not splits
        or not isinstance(splits[0], list | tuple)
    ):
        raise ConfigError(f"precomputed_splits must be (folds, score, seed), got {shown(splits)}")
    return splits[0]


def _parts(name: str, parts: Any, data: _Data) -> tuple[Indices, Indices]:
    if not isinstance(parts, tuple | list) or len(parts) != 2:
        raise ConfigError(f"{name} must have a training and a validation part, got {shown(parts)}")
    train, val = (as_indices(part, len(data.labels)) for part in parts)
    check_split(train, val, data.authors)
    return train, val


def _known(authors: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    if authors is None:
        raise PlanError("a split by author needs authors=, one for each sample")
    return authors


def _stratified(
    labels: npt.NDArray[np.int64], test_size: float, random_state: int
) -> tuple[Indices, Indices]:
    sklearn = optional("sklearn.model_selection", extra="train")
    train, val = sklearn.train_test_split(
        np.arange(len(labels)), test_size=test_size, stratify=labels, random_state=random_state
    )
    return np.sort(train), np.sort(val)
