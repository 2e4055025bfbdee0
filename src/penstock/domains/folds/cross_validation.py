"""`cross_val_training` and `single_fold_training`: train a classifier on splits by author."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from penstock.arguments import flag, shown
from penstock.datasets.standardized import as_indices
from penstock.domains.folds.engine import TrainingEngine
from penstock.domains.folds.fold import (
    CROSS_VALIDATION,
    SINGLE_FOLD,
    LabelledData,
    collect_data,
    fold_config,
)
from penstock.domains.folds.splits import author_folds, author_split, check_split
from penstock.errors import ConfigError
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
    """Train and evaluate a model on k folds by author; return ``(results, best_results)``.

    ``results`` has ``fold_results`` (``fold_1``, ...), ``summary`` and ``config``.
    ``best_results`` has the best ``accuracies``, ``f1s`` and ``losses`` of each fold.

    Args:
        data_path: A folder for `SpectrogramFolder`, or a file for `read_pixel_table`.
        features: The samples, instead of a path; for example ``(n, channels, bins, frames)``.
        labels: The class of each sample.
        authors: The author of each sample; none is in both parts of a fold.
        model_class: Called with ``num_classes=``; returns a new model.
        num_classes: Number of classes. None is the largest label plus one.
        config: Settings by name; the others have their defaults.
        spec_augment: Mask parts of the spectrograms in training.
        gaussian_noise: Add noise to the samples in training.
        precomputed_splits: ``(folds, score, seed)``, as returned by `author_folds`.
        groups: The recording that each sample was cut from. If passed, the samples of a recording
            vote for its class.
        run_directory: Directory for checkpoints. A run that was interrupted continues from them.
        progress: Show progress bars. None shows them on a terminal.

    Raises:
        ConfigError: An argument or a setting is invalid.
        PlanError: There is no such split.
    """
    augmented = {"spec_augment": spec_augment, "gaussian_noise": gaussian_noise}
    settings = fold_config(config, fold_config(augmented, CROSS_VALIDATION))
    data = collect_data(data_path, features, labels, authors, groups)
    if precomputed_splits is not None:
        splits = precomputed_splits
        listed = isinstance(splits, tuple | list) and splits
        if not listed or not isinstance(splits[0], list | tuple):
            raise ConfigError(f"precomputed_splits must be (folds, score, seed): {shown(splits)}")
        folds = [_parts("precomputed_splits", each, data) for each in splits[0]]
    else:
        folds = author_folds(
            data.labels,
            data.required_authors(),
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
    """Train and evaluate a model on one split; return the result of one fold.

    Args:
        data_path: A folder for `SpectrogramFolder`, or a file for `read_pixel_table`.
        features: The samples, instead of a path; for example ``(n, channels, bins, frames)``.
        labels: The class of each sample.
        authors: The author of each sample; none is in both parts.
        model_class: Called with ``num_classes=``; returns a new model.
        num_classes: Number of classes. None is the largest label plus one.
        config: Settings by name; the others have their defaults.
        use_predefined_split: Split by author. False splits at random, class by class.
        spec_augment: Mask parts of the spectrograms in training.
        gaussian_noise: Add noise to the samples in training.
        precomputed_split: ``(train, val, score)``, as returned by `author_split`.
        groups: The recording that each sample was cut from. If passed, the samples of a recording
            vote for its class.
        run_directory: Directory for checkpoints. A run that was interrupted continues from them.
        progress: Show progress bars. None shows them on a terminal.

    Raises:
        ConfigError: An argument or a setting is invalid.
        PlanError: There is no such split.
    """
    augmented = {"spec_augment": spec_augment, "gaussian_noise": gaussian_noise}
    settings = fold_config(config, fold_config(augmented, SINGLE_FOLD))
    data = collect_data(data_path, features, labels, authors, groups)
    if precomputed_split is not None:
        parts = precomputed_split
        parts = parts[:2] if isinstance(parts, tuple | list) else parts
        train, val = _parts("precomputed_split", parts, data)
    elif flag("use_predefined_split", use_predefined_split, error=ConfigError):
        train, val, _ = author_split(
            data.labels,
            data.required_authors(),
            settings["test_size"],
            random_state=settings["random_state"],
            max_attempts=settings["max_split_attempts"],
            min_test_segments=settings["min_test_segments"],
            progress=progress,
        )
    else:
        sklearn = optional("sklearn.model_selection", extra="train")
        train, val = map(
            np.sort,
            sklearn.train_test_split(
                np.arange(len(data.labels)),
                test_size=settings["test_size"],
                stratify=data.labels,
                random_state=settings["random_state"],
            ),
        )
    engine = _engine(model_class, num_classes, data, settings, run_directory, progress)
    return engine.run_single_fold(data.dataset, train, val, groups=data.recordings)


def _engine(
    model_class: Any,
    num_classes: int | None,
    data: LabelledData,
    settings: dict[str, Any],
    run_directory: str | Path | None,
    progress: bool | None,
) -> TrainingEngine:
    classes = int(data.labels.max()) + 1 if num_classes is None else num_classes
    return TrainingEngine(
        model_class, classes, settings, run_directory=run_directory, progress=progress
    )


def _parts(name: str, parts: Any, data: LabelledData) -> tuple[Indices, Indices]:
    if not isinstance(parts, tuple | list) or len(parts) != 2:
        raise ConfigError(f"{name} must have a training and a validation part, got {shown(parts)}")
    train, val = (as_indices(part, len(data.labels)) for part in parts)
    check_split(train, val, data.authors)
    return train, val
