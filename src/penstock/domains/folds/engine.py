"""`TrainingEngine`: trains and evaluates a model on the folds of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from penstock.arguments import a_path, flag, map_style, shown, whole_number
from penstock.datasets.gather import fingerprint_of
from penstock.datasets.standardized import as_indices
from penstock.domains.folds.config import ALL, ENGINE, fold_config
from penstock.domains.folds.data import check_labels, fold_loaders, fold_subsets, labels_of
from penstock.domains.folds.fold import (
    Fold,
    Progress,
    fit,
    restore,
    result_from_state,
    result_to_state,
)
from penstock.domains.folds.run_directory import RunDirectory, digest_of
from penstock.domains.folds.scores import balanced_weights, pool, summarize_folds, vote
from penstock.domains.folds.splits import check_split
from penstock.domains.spectrograms import MOST_CLASSES
from penstock.errors import ConfigError, PlanError
from penstock.loaders import Loader
from penstock.order import Indices, derive_key
from penstock.tuning import DataLoaderPerformanceMonitor

FoldIndices: TypeAlias = Sequence[tuple[Sequence[int] | Indices, Sequence[int] | Indices]]


class TrainingEngine:
    """Trains ``model_class(num_classes=...)`` on the folds of a dataset of ``(x, class)``.

    Both parts of a fold are standardized by the statistics of its training part. Only the training
    part is augmented. A fold is trained until its validation loss stops falling, and its best
    weights are restored. The seed determines weights, order, augmentation and dropout.

    Args:
        model_class: Called with ``num_classes=``; returns a new model.
        num_classes: Number of classes; labels are ``0 .. num_classes - 1``.
        config: Settings by name; the others have the defaults of `cross_val_training`.
        run_directory: Directory for checkpoints. A run that was interrupted continues from them.
        progress: Show progress bars. None shows them on a terminal.

    Raises:
        ConfigError: An argument or a setting is invalid.
    """

    def __init__(
        self,
        model_class: Callable[..., nn.Module],
        num_classes: int,
        config: Mapping[str, Any] | None = None,
        *,
        run_directory: str | Path | None = None,
        progress: bool | None = None,
    ) -> None:
        if model_class is None or not callable(model_class):
            raise ConfigError(f"model_class must be callable, got {shown(model_class)}")
        self.model_class = model_class
        self.num_classes = whole_number(
            "num_classes", num_classes, minimum=1, maximum=MOST_CLASSES, error=ConfigError
        )
        self.config = fold_config(config, ENGINE, known=ALL)
        self.run_directory = (
            None if run_directory is None else a_path("run_directory", run_directory)
        )
        self.progress = None if progress is None else flag("progress", progress)
        accelerator = torch.accelerator.is_available()
        found = torch.accelerator.current_accelerator() if accelerator else None
        self.device = found or torch.device("cpu")

    def run_cross_validation(
        self, dataset: Any, fold_indices: FoldIndices, *, groups: npt.ArrayLike | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Train all folds; return their results with a summary, and the best scores of each.

        Args:
            dataset: A map-style dataset of samples ``(x, class)``.
            fold_indices: Training and validation samples of each fold.
            groups: The recording that each sample was cut from. If passed, the samples of a
                recording vote for its class.
        """
        folds, found = self._train_all(dataset, fold_indices)
        results = {
            "fold_results": {f"fold_{i}": fold for i, fold in enumerate(found, start=1)},
            "summary": self._summary(found, folds, groups),
            "config": dict(self.config),
        }
        best = {
            "accuracies": [fold["best_val_acc"] for fold in found],
            "f1s": [fold["best_val_f1"] for fold in found],
            "losses": [min(fold["history"]["val_losses"]) for fold in found],
        }
        return results, best

    def run_single_fold(
        self,
        dataset: Any,
        train_indices: Sequence[int] | Indices,
        val_indices: Sequence[int] | Indices,
        *,
        groups: npt.ArrayLike | None = None,
    ) -> dict[str, Any]:
        """Train one fold; return its result.

        Args:
            dataset: A map-style dataset of samples ``(x, class)``.
            train_indices: The training samples.
            val_indices: The validation samples.
            groups: As in `run_cross_validation`.
        """
        folds, (result,) = self._train_all(dataset, [(train_indices, val_indices)])
        if groups is not None:
            recordings = np.asarray(groups)[folds[0][1]]
            result |= vote(result["val_predictions"], result["val_targets"], recordings)
        return result | {"config": dict(self.config)}

    # -- one fold

    def _create_data_subsets(
        self, dataset: Any, train: Indices, val: Indices
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Return both parts as datasets, and the statistics of the training part."""
        return fold_subsets(
            dataset, train, val, self.config, classes=self.num_classes, progress=self.progress
        )

    def _create_data_loaders(self, train_subset: Any, val_subset: Any) -> tuple[Any, Any]:
        """Return the loaders of both parts."""
        return fold_loaders(train_subset, val_subset, self.config)

    def _train_all(
        self, dataset: Any, fold_indices: FoldIndices
    ) -> tuple[list[tuple[Indices, Indices]], list[dict[str, Any]]]:
        """Return the folds after checking them, and the result of each."""
        size = len(map_style("dataset", dataset))
        folds = [(as_indices(train, size), as_indices(val, size)) for train, val in fold_indices]
        if not folds:
            raise PlanError("fold_indices must have at least 1 fold, got none")
        labels = labels_of(dataset)
        for train, val in folds:
            check_split(train, val, authors=None)
            check_labels(labels[np.concatenate([train, val])], self.num_classes)
        directory = self._open_directory(dataset, labels, folds)
        return folds, [
            self._train(dataset, labels, fold, number, directory)
            for number, fold in enumerate(folds, start=1)
        ]

    def _train(
        self,
        dataset: Any,
        labels: Indices,
        parts: tuple[Indices, Indices],
        number: int,
        directory: RunDirectory | None,
    ) -> dict[str, Any]:
        saved = None if directory is None else directory.load(number)
        if directory is not None and saved is not None and "result" in saved:
            with directory.restoring(number):
                return result_from_state(saved["result"])

        def save(state: dict[str, Any]) -> None:
            if directory is not None:
                directory.save(number, state)

        train_part, val_part, statistics = self._create_data_subsets(dataset, *parts)
        with ExitStack() as stack, _restored_generators(self.device):
            loaders = self._create_data_loaders(train_part, val_part)
            for loader in loaders:
                if isinstance(loader, Loader):
                    stack.enter_context(loader)
            fold, progress = self._fold(number, labels[parts[0]], loaders), Progress()
            if directory is not None and saved is not None:
                with directory.restoring(number):
                    progress = restore(fold, saved)
            figures = {}
            if self.config["benchmark_performance"]:
                train, val = map(DataLoaderPerformanceMonitor().time_batch_loading, loaders)
                figures = {"performance": {"train": train, "val": val}}
            result = fit(fold, progress, save, self.progress) | statistics | figures
        save({"result": result_to_state(result)})
        return result

    def _fold(self, number: int, labels: Indices, loaders: tuple[Any, Any]) -> Fold:
        config = self.config
        torch.manual_seed(derive_key(config["seed"], "fold", number, "weights"))
        model = self.model_class(num_classes=self.num_classes)
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"model_class must return a torch.nn.Module for num_classes=, got {shown(model)}"
            )
        model = model.to(self.device)
        weights = balanced_weights(labels, self.num_classes).to(self.device)
        criterion = nn.CrossEntropyLoss(weights if config["use_class_weights"] else None)
        optimizer = torch.optim.Adam(
            model.parameters(), config["learning_rate"], weight_decay=config["l2_regularization"]
        )
        return Fold(number, model, criterion, optimizer, *loaders, self.device, config)

    def _summary(
        self, found: list[dict[str, Any]], folds: FoldIndices, groups: npt.ArrayLike | None
    ) -> dict[str, Any]:
        summary = summarize_folds(found)
        if not self.config["aggregate_predictions"]:
            return summary
        logits = torch.cat([fold["val_predictions"] for fold in found])
        targets = torch.cat([fold["val_targets"] for fold in found])
        summary |= pool(logits, targets)
        if groups is not None:
            recordings = np.asarray(groups)[np.concatenate([val for _, val in folds])]
            summary |= vote(logits, targets, recordings)
        return summary

    def _open_directory(
        self, dataset: Any, labels: Indices, folds: list[tuple[Indices, Indices]]
    ) -> RunDirectory | None:
        if self.run_directory is None:
            return None
        # measuring the loaders does not change the result
        settings = {k: v for k, v in self.config.items() if k != "benchmark_performance"}
        identity = {
            **settings,
            "num_classes": self.num_classes,
            "model": getattr(self.model_class, "__qualname__", repr(self.model_class)),
            "data": fingerprint_of(dataset),
            "labels": digest_of([labels]),
            "split": digest_of([part for fold in folds for part in fold]),
        }
        return RunDirectory(self.run_directory, identity)


def _restored_generators(device: torch.device) -> AbstractContextManager[None]:
    """A block that may seed torch; afterwards the caller's generators are as before."""
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    index = torch.accelerator.current_device_index()
    return torch.random.fork_rng(devices=[index], device_type=device.type)
