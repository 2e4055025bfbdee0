"""Trains any model on folds, all of them in one way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from penstock.datasets import AugmentedDataset, StandardizedDataset, compute_standardization
from penstock.datasets.gather import fingerprint_of
from penstock.datasets.reading import first_field
from penstock.datasets.standardized import as_indices
from penstock.loaders import DataLoaderFactory, DataLoaderPerformanceMonitor, Loader
from penstock.order import Indices, derive_key
from penstock.training.classification import (
    Evaluation,
    Stepping,
    balanced_weights,
    check_labels,
    confusion,
)
from penstock.training.fold import Fold, Standing, fit, restore, state_of
from penstock.training.fold_config import ENGINE, EVERY, fold_config
from penstock.training.labels import labels_of
from penstock.training.pooling import pool, summarize_folds, vote
from penstock.training.run_directory import RunDirectory
from penstock.training.splits import check_split
from penstock.transforms import recommended_augmentation

log = logging.getLogger("penstock")
FoldIndices = Sequence[tuple[Sequence[int] | Indices, Sequence[int] | Indices]]


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
        self.model_class, self.num_classes = model_class, num_classes
        self.config = fold_config(config, ENGINE, known=EVERY)
        self.run_directory, self.progress = run_directory, progress
        self.device = torch.accelerator.current_accelerator() or torch.device("cpu")

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
        folds = self._checked(dataset, fold_indices)
        store = self._store(dataset, folds)
        found = [
            self._train(dataset, train, val, number, store)
            for number, (train, val) in enumerate(folds, start=1)
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
        folds = self._checked(dataset, [(train_indices, val_indices)])
        result = self._train(dataset, *folds[0], 1, self._store(dataset, folds))
        if groups is not None:
            recordings = np.asarray(groups)[folds[0][1]]
            result |= vote(result["val_predictions"], result["val_targets"], recordings)
        return result | {"config": dict(self.config)}

    # -- data

    def _create_data_subsets(
        self, dataset: Any, train: Indices, val: Indices
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Both parts as they are trained on, and the statistics of the training part."""
        base, statistics = self._augmented(dataset, train), {"mean": None, "std": None}
        if not self.config["standardize"]:
            return Subset(base, train.tolist()), Subset(dataset, val.tolist()), statistics
        mean, std = compute_standardization(dataset, train, progress=self.progress)
        parts = (
            StandardizedDataset(base, train, mean, std),
            StandardizedDataset(dataset, val, mean, std),
        )
        return *parts, {"mean": mean, "std": std}

    def _augmented(self, dataset: Any, train: Indices) -> Any:
        masks, noise = self.config["spec_augment"], self.config["gaussian_noise"]
        if not (masks or noise):
            return dataset
        shape = first_field(dataset[int(train[0])]).shape
        size = (shape[-2], shape[-1]) if len(shape) > 1 else (224, 313)
        params = recommended_augmentation(len(train), self.num_classes, size)
        chosen = {
            "spec_augment_params": params["spec_augment_params"] if masks else None,
            "gaussian_noise_params": params["gaussian_noise_params"] if noise else None,
        }
        return AugmentedDataset(dataset, chosen, seed=self.config["seed"])

    def _create_data_loaders(self, train_subset: Any, val_subset: Any) -> tuple[Any, Any]:
        """The loaders of both parts; the one place where loaders of folds are made."""
        config, size = self.config, self.config["batch_size"]
        # the incomplete last batch is left out, unless it is the only one
        drop_last = len(train_subset) >= size
        if not config["optimize_dataloaders"]:
            rng = torch.Generator()
            train = DataLoader(train_subset, size, shuffle=True, drop_last=drop_last, generator=rng)
            return train, DataLoader(val_subset, size)
        standardizes = config["standardize"]
        train = DataLoaderFactory.create_training_loader(
            train_subset,
            batch_size=size,
            has_augmentation=config["spec_augment"] or config["gaussian_noise"],
            has_standardization=standardizes,
            drop_last=drop_last,
            seed=config["seed"],
        )
        val = DataLoaderFactory.create_validation_loader(
            val_subset, batch_size=size, has_standardization=standardizes
        )
        return train, val

    # -- one fold

    def _train(
        self, dataset: Any, train: Indices, val: Indices, number: int, store: RunDirectory | None
    ) -> dict[str, Any]:
        saved = None if store is None else store.load(number)
        if saved is not None and "result" in saved:
            return _from_store(saved["result"])
        train_part, val_part, statistics = self._create_data_subsets(dataset, train, val)
        with ExitStack() as stack, torch.random.fork_rng():  # the caller's draws stay his
            loaders = self._create_data_loaders(train_part, val_part)
            for loader in loaders:
                if isinstance(loader, Loader):
                    stack.enter_context(loader)
            fold = self._fold(number, labels_of(dataset, train), loaders)
            standing = Standing() if saved is None else restore(fold, saved)
            figures = self._figures(loaders)

            def save(standing: Standing) -> None:
                if store is not None:
                    store.save(number, state_of(fold, standing))

            evaluation = fit(fold, standing, self.config, save, self.progress)
            result = self._result(fold, standing, evaluation) | statistics | figures
        if store is not None:
            store.save(number, {"result": _for_store(result)})
        return result

    def _fold(self, number: int, labels: npt.NDArray[np.int64], loaders: tuple[Any, Any]) -> Fold:
        config, seed = self.config, self.config["seed"]
        torch.manual_seed(derive_key(seed, "fold", number, "weights"))
        model = self.model_class(num_classes=self.num_classes).to(self.device)
        weights = balanced_weights(labels, self.num_classes).to(self.device)
        criterion = nn.CrossEntropyLoss(weights if config["use_class_weights"] else None)
        optimizer = torch.optim.Adam(
            model.parameters(), config["learning_rate"], weight_decay=config["l2_regularization"]
        )
        stepping = Stepping(self.device, config["mixed_precision"], config["gradient_clipping"])
        epochs = _Epochs(loaders[0], seed)
        return Fold(number, model, criterion, optimizer, epochs, loaders[1], stepping, seed)

    def _figures(self, loaders: tuple[Any, Any]) -> dict[str, Any]:
        if not self.config["benchmark_performance"]:
            return {}
        monitor = DataLoaderPerformanceMonitor()
        parts = zip(("train", "val"), loaders, strict=True)
        return {"performance": {name: monitor.time_batch_loading(each) for name, each in parts}}

    def _result(self, fold: Fold, standing: Standing, evaluation: Evaluation) -> dict[str, Any]:
        history, scores = standing.history, evaluation.scores
        predictions = evaluation.logits.argmax(1)
        log.info(
            "fold %d: %d epochs, best after %d: loss %.4f, accuracy %.4f, f1 %.4f",
            fold.number, standing.epoch, history["best_epoch"] + 1,
            scores.loss, scores.accuracy, scores.f1,
        )  # fmt: skip
        return {
            "history": history,
            "final_val_acc": scores.accuracy,
            "final_val_loss": scores.loss,
            "final_val_f1": scores.f1,
            "best_val_acc": max(history["val_accuracies"]),
            "best_val_f1": max(history["val_f1s"]),
            "model_state": {k: v.cpu().clone() for k, v in fold.model.state_dict().items()},
            "confusion_matrix": confusion(predictions, evaluation.targets, self.num_classes),
            "val_predictions": evaluation.logits,
            "val_targets": evaluation.targets,
            "training_time": standing.seconds,
        }

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

    def _checked(self, dataset: Any, fold_indices: FoldIndices) -> list[tuple[Indices, Indices]]:
        size = len(dataset)
        folds = [(as_indices(train, size), as_indices(val, size)) for train, val in fold_indices]
        for train, val in folds:
            check_split(train, val, authors=None)
            check_labels(labels_of(dataset, np.concatenate([train, val])), self.num_classes)
        return folds

    def _store(self, dataset: Any, folds: list[tuple[Indices, Indices]]) -> RunDirectory | None:
        if self.run_directory is None:
            return None
        digest = blake2b(digest_size=8)
        for part in (part for fold in folds for part in fold):
            digest.update(f"{len(part)}:".encode() + part.tobytes())
        kept = {k: v for k, v in self.config.items() if k != "benchmark_performance"}
        identity = {
            **kept,
            "num_classes": self.num_classes,
            "model": getattr(self.model_class, "__qualname__", repr(self.model_class)),
            "data": fingerprint_of(dataset),
            "split": digest.hexdigest(),
        }
        return RunDirectory(self.run_directory, identity)


class _Epochs:
    """The training batches of a given epoch, whatever was read before."""

    def __init__(self, loader: Any, seed: int) -> None:
        self._loader, self._seed = loader, seed

    def __call__(self, epoch: int) -> Any:
        if isinstance(self._loader, Loader):
            self._loader.seek(epoch)
            return self._loader
        self._loader.generator.manual_seed(derive_key(self._seed, "order", epoch))
        inner = self._loader.dataset
        inner = inner.dataset if isinstance(inner, Subset) else inner
        getattr(inner, "set_epoch", lambda _: None)(epoch)
        return self._loader


def _for_store(result: dict[str, Any]) -> dict[str, Any]:
    """A result as tensors and plain values, which load without running anything."""
    return result | {"confusion_matrix": torch.from_numpy(result["confusion_matrix"])}


def _from_store(result: dict[str, Any]) -> dict[str, Any]:
    return result | {"confusion_matrix": result["confusion_matrix"].numpy()}
