"""Trains any model on folds, all of them in one way."""

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
from penstock.domains.folds.classification import Stepping, balanced_weights, check_labels
from penstock.domains.folds.fold import Fold, Standing, fit, restore, state_of
from penstock.domains.folds.fold_config import ENGINE, EVERY, fold_config
from penstock.domains.folds.fold_data import EpochBatches, fold_loaders, fold_subsets
from penstock.domains.folds.fold_result import fold_result, for_store, from_store
from penstock.domains.folds.labels import labels_of
from penstock.domains.folds.pooling import pool, summarize_folds, vote
from penstock.domains.folds.run_directory import RunDirectory, digest_of
from penstock.domains.folds.splits import check_split
from penstock.domains.spectrograms import MOST_CLASSES
from penstock.errors import ConfigError, PlanError
from penstock.loaders import Loader
from penstock.order import Indices, derive_key
from penstock.tuning import DataLoaderPerformanceMonitor

FoldIndices: TypeAlias = Sequence[tuple[Sequence[int] | Indices, Sequence[int] | Indices]]


class TrainingEngine:
    """Trains ``model_class(num_classes=...)`` on the folds of a dataset of ``(x, class)``.

    A fold is standardised by its training part's statistics, augmented in its training part
    alone, trained until its validation loss stops falling, and put back to its best weights.
    What happens is a function of the seed: of weights, order, augmentation and dropout alike.

    Args:
        model_class: called with ``num_classes=``.
        num_classes: of the labels ``0 .. num_classes - 1``.
        config: settings by name; the rest are the defaults of `cross_val_training`.
        run_directory: where checkpoints go; a run that ended there goes on at its fold and epoch.
        progress: None shows bars on a terminal.
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
        self.config = fold_config(config, ENGINE, known=EVERY)
        self.run_directory = (
            None if run_directory is None else a_path("run_directory", run_directory)
        )
        self.progress = None if progress is None else flag("progress", progress)
        self.device = _device()

    # -- runs

    def run_cross_validation(
        self, dataset: Any, fold_indices: FoldIndices, *, groups: npt.ArrayLike | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Every fold's result and their summary; and the best scores each fold had.

        Args:
            dataset: of samples ``(x, class)``.
            fold_indices: training and validation samples of each fold.
            groups: the recording each sample is cut from; the segments of one then vote.
        """
        folds, labels = self._checked(dataset, fold_indices)
        store = self._store(dataset, labels, folds)
        found = [
            self._train(dataset, labels, fold, number, store)
            for number, fold in enumerate(folds, start=1)
        ]
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
        """The result of one fold; with ``groups``, also the votes of each recording's segments."""
        folds, labels = self._checked(dataset, [(train_indices, val_indices)])
        store = self._store(dataset, labels, folds)
        result = self._train(dataset, labels, folds[0], 1, store)
        if groups is not None:
            recordings = np.asarray(groups)[folds[0][1]]
            result |= vote(result["val_predictions"], result["val_targets"], recordings)
        return result | {"config": dict(self.config)}

    # -- one fold

    def _create_data_subsets(
        self, dataset: Any, train: Indices, val: Indices
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Both parts as they are trained on, and the statistics of the training part."""
        return fold_subsets(
            dataset, train, val, self.config, classes=self.num_classes, progress=self.progress
        )

    def _create_data_loaders(self, train_subset: Any, val_subset: Any) -> tuple[Any, Any]:
        """The loaders of both parts, the same for every way of training."""
        return fold_loaders(train_subset, val_subset, self.config)

    def _train(
        self,
        dataset: Any,
        labels: Indices,
        parts: tuple[Indices, Indices],
        number: int,
        store: RunDirectory | None,
    ) -> dict[str, Any]:
        saved = None if store is None else store.load(number)
        if store is not None and saved is not None and "result" in saved:
            with store.restoring(number):
                return from_store(saved["result"])
        train_part, val_part, statistics = self._create_data_subsets(dataset, *parts)
        with ExitStack() as stack, _own_draws(self.device):
            loaders = self._create_data_loaders(train_part, val_part)
            for loader in loaders:
                if isinstance(loader, Loader):
                    stack.enter_context(loader)
            fold = self._fold(number, labels[parts[0]], loaders)
            standing = Standing()
            if store is not None and saved is not None:
                with store.restoring(number):
                    standing = restore(fold, saved)
            figures = self._figures(loaders)

            def save(standing: Standing) -> None:
                if store is not None:
                    store.save(number, state_of(fold, standing))

            evaluation = fit(fold, standing, self.config, save, self.progress)
            result = fold_result(fold, standing, evaluation) | statistics | figures
        if store is not None:
            store.save(number, {"result": for_store(result)})
        return result

    def _fold(self, number: int, labels: Indices, loaders: tuple[Any, Any]) -> Fold:
        config, seed = self.config, self.config["seed"]
        torch.manual_seed(derive_key(seed, "fold", number, "weights"))
        model = self.model_class(num_classes=self.num_classes)
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"model_class must make a torch.nn.Module of num_classes=, made {shown(model)}"
            )
        model = model.to(self.device)
        weights = balanced_weights(labels, self.num_classes).to(self.device)
        criterion = nn.CrossEntropyLoss(weights if config["use_class_weights"] else None)
        optimizer = torch.optim.Adam(
            model.parameters(), config["learning_rate"], weight_decay=config["l2_regularization"]
        )
        stepping = Stepping(self.device, config["mixed_precision"], config["gradient_clipping"])
        epochs = EpochBatches(loaders[0], seed)
        return Fold(number, model, criterion, optimizer, epochs, loaders[1], stepping, seed)

    def _figures(self, loaders: tuple[Any, Any]) -> dict[str, Any]:
        if not self.config["benchmark_performance"]:
            return {}
        monitor = DataLoaderPerformanceMonitor()
        parts = zip(("train", "val"), loaders, strict=True)
        return {"performance": {name: monitor.time_batch_loading(each) for name, each in parts}}

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

    # -- before anything runs

    def _checked(
        self, dataset: Any, fold_indices: FoldIndices
    ) -> tuple[list[tuple[Indices, Indices]], Indices]:
        """The folds, and the class of every sample of the dataset."""
        size = len(map_style("dataset", dataset))
        folds = [(as_indices(train, size), as_indices(val, size)) for train, val in fold_indices]
        if not folds:
            raise PlanError("fold_indices must have at least 1 fold, got none")
        labels = labels_of(dataset, np.arange(size))
        for train, val in folds:
            check_split(train, val, authors=None)
            check_labels(labels[np.concatenate([train, val])], self.num_classes)
        return folds, labels

    def _store(
        self, dataset: Any, labels: Indices, folds: list[tuple[Indices, Indices]]
    ) -> RunDirectory | None:
        if self.run_directory is None:
            return None
        kept = {k: v for k, v in self.config.items() if k != "benchmark_performance"}
        identity = {
            **kept,
            "num_classes": self.num_classes,
            "model": getattr(self.model_class, "__qualname__", repr(self.model_class)),
            "data": fingerprint_of(dataset),
            "labels": digest_of([labels]),
            "split": digest_of([part for fold in folds for part in fold]),
        }
        return RunDirectory(self.run_directory, identity)


def _device() -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def _own_draws(device: torch.device) -> AbstractContextManager[None]:
    """A block that may seed torch as it likes: the caller's generators are as before afterwards."""
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    index = torch.accelerator.current_device_index()
    return torch.random.fork_rng(devices=[index], device_type=device.type)
