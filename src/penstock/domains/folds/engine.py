"""`cross_val_training` and `single_fold_training`: an engine that trains on splits by author."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from penstock.arguments import a_path, flag, map_style, shown, whole_number
from penstock.atomic_files import remove_unfinished
from penstock.datasets import AugmentedDataset, StandardizedDataset, compute_standardization
from penstock.datasets.gather import fingerprint_of, first_field
from penstock.datasets.standardized import as_indices
from penstock.domains.folds.fold import (
    ALL,
    CROSS_VALIDATION,
    ENGINE,
    SINGLE_FOLD,
    Fold,
    LabelledData,
    Progress,
    balanced_weights,
    collect_data,
    fit,
    fold_config,
    labels_of,
    pool,
    restore,
    summarize_folds,
    vote,
)
from penstock.domains.folds.splits import author_folds, author_split, check_split
from penstock.domains.spectrograms import MAX_CLASSES
from penstock.errors import ConfigError, PlanError, StateError
from penstock.extras import optional
from penstock.fingerprints import short_digest
from penstock.loaders import Loader
from penstock.order import Indices, derive_key
from penstock.training import checkpoint_files as files
from penstock.transforms import recommended_augmentation
from penstock.tuning import DataLoaderFactory, DataLoaderPerformanceMonitor

Save: TypeAlias = Callable[[dict[str, Any]], None]
FoldIndices: TypeAlias = Sequence[tuple[Sequence[int] | Indices, Sequence[int] | Indices]]


class FoldFiles:
    """The checkpoints of the folds of one run, one file each.

    A file is replaced atomically: a process that dies while writing leaves the previous one.

    Args:
        path: The directory; created if it does not exist.
        identity: Plain values that identify the run: settings, data, split.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path, self.identity = path, dict(identity)
        files.make_directory("run_directory", path)
        remove_unfinished(path)

    def load(self, fold: int) -> dict[str, Any] | None:
        """Return the latest checkpoint of a fold; None if there is none."""
        file = self.file_of(fold)
        try:
            state = files.read_checkpoint(file)
        except files.NoCheckpointError:
            return None
        except files.DamagedCheckpointError as error:
            raise files.DamagedCheckpointError(
                f"{error}: restore {str(file)!r}, or delete it to train fold {fold} again"
            ) from error
        run = state.get("run")
        found = run if isinstance(run, dict) else {}
        for name in dict.fromkeys([*self.identity, *found]):
            if found.get(name) != self.identity.get(name):
                raise StateError(
                    f"{str(file)!r} holds a run with {name} {shown(found.get(name))}, this one "
                    f"has {shown(self.identity.get(name))}: use another directory, or restore it"
                )
        return state

    def save(self, fold: int, state: dict[str, Any]) -> None:
        """Save the checkpoint of a fold."""
        files.write_checkpoint(self.file_of(fold), {**state, "run": self.identity})

    def file_of(self, fold: int) -> Path:
        """Return the path of a fold's checkpoint."""
        return self.path / f"fold_{fold}.pt"


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
        if not callable(model_class):
            raise ConfigError(
                f"pass model_class=, called for a new model: got {shown(model_class)}"
            )
        self.model_class = model_class
        self.num_classes = whole_number(
            "num_classes", num_classes, minimum=1, maximum=MAX_CLASSES, error=ConfigError
        )
        self.config = fold_config(config, ENGINE, known=ALL)
        path = run_directory
        self.run_directory = None if path is None else a_path("run_directory", path)
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
        base, config = dataset, self.config
        wanted = {"spec_augment_params": "spec_augment", "gaussian_noise_params": "gaussian_noise"}
        if any(config[key] for key in wanted.values()):
            shape = tuple(first_field(dataset[int(train[0])]).shape)
            size = (shape[-2], shape[-1]) if len(shape) > 1 else (224, 313)
            params = recommended_augmentation(len(train), self.num_classes, size)
            chosen = {part: params[part] if config[key] else None for part, key in wanted.items()}
            base = AugmentedDataset(dataset, chosen, seed=config["seed"])
        if not config["standardize"]:
            parts = Subset(base, train.tolist()), Subset(dataset, val.tolist())
            return *parts, {"mean": None, "std": None}
        mean, std = compute_standardization(dataset, train, progress=self.progress)
        train_part = StandardizedDataset(base, train, mean, std)
        val_part = StandardizedDataset(dataset, val, mean, std)
        return train_part, val_part, {"mean": mean, "std": std}

    def _create_data_loaders(self, train_subset: Any, val_subset: Any) -> tuple[Any, Any]:
        """Return the loaders of both parts; torch's own where they are not to be optimized."""
        config = self.config
        size, drop_last = config["batch_size"], len(train_subset) >= config["batch_size"]
        if not config["optimize_dataloaders"]:
            options: dict[str, Any] = {"drop_last": drop_last, "generator": torch.Generator()}
            train_loader: Any = DataLoader(train_subset, size, shuffle=True, **options)
            return train_loader, DataLoader(val_subset, size)
        hints = {"has_standardization": config["standardize"]}
        train_loader = DataLoaderFactory.create_training_loader(
            train_subset,
            batch_size=size,
            has_augmentation=config["spec_augment"] or config["gaussian_noise"],
            drop_last=drop_last,
            seed=config["seed"],
            **hints,
        )
        val_loader = DataLoaderFactory.create_validation_loader(val_subset, size, **hints)
        return train_loader, val_loader

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
            used = labels[np.concatenate([train, val])]
            for wrong in used[(used < 0) | (used >= (most := self.num_classes))]:
                raise PlanError(
                    f"labels must be in [0, {most}) for num_classes={most}, got {wrong}"
                )
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
        directory: FoldFiles | None,
    ) -> dict[str, Any]:
        saved = None if directory is None else directory.load(number)
        if saved is not None and "result" in saved:
            result: dict[str, Any] = saved["result"]
            return result | {"confusion_matrix": result["confusion_matrix"].numpy()}
        save: Save = (lambda _: None) if directory is None else partial(directory.save, number)
        train_part, val_part, statistics = self._create_data_subsets(dataset, *parts)
        seeded: dict[str, Any] = {"devices": []}
        if self.device.type != "cpu":
            index = torch.accelerator.current_device_index()
            seeded = {"devices": [index], "device_type": self.device.type}
        # the caller's random state is as before, however many folds were trained
        with ExitStack() as stack, torch.random.fork_rng(**seeded):
            loaders = self._create_data_loaders(train_part, val_part)
            for loader in loaders:
                if isinstance(loader, Loader):
                    stack.enter_context(loader)
            fold = self._fold(number, labels[parts[0]], loaders)
            progress = Progress()
            if directory is not None and saved is not None:
                try:
                    progress = restore(fold, saved)
                except (KeyError, TypeError, ValueError, RuntimeError) as error:
                    file, why = str(directory.file_of(number)), files.reason_of(error)
                    raise StateError(
                        f"checkpoint {file!r} does not fit this run ({why}): restore it, or "
                        f"delete it to train fold {number} again"
                    ) from error
            figures = {}
            if self.config["benchmark_performance"]:
                train, val = map(DataLoaderPerformanceMonitor().time_batch_loading, loaders)
                figures = {"performance": {"train": train, "val": val}}
            result = fit(fold, progress, save, self.progress) | statistics | figures
        matrix = torch.from_numpy(result["confusion_matrix"])  # loads without running code
        save({"result": result | {"confusion_matrix": matrix}})
        return result

    def _fold(self, number: int, labels: Indices, loaders: tuple[Any, Any]) -> Fold:
        config = self.config
        torch.manual_seed(derive_key(config["seed"], "fold", number, "weights"))
        model = self.model_class(num_classes=self.num_classes)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model_class must return a torch.nn.Module, got {shown(model)}")
        model = model.to(self.device)
        weights = balanced_weights(labels, self.num_classes).to(self.device)
        criterion = nn.CrossEntropyLoss(weights if config["use_class_weights"] else None)
        rates = {"lr": config["learning_rate"], "weight_decay": config["l2_regularization"]}
        optimizer = torch.optim.Adam(model.parameters(), **rates)
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
    ) -> FoldFiles | None:
        if self.run_directory is None:
            return None
        # a run is refused in the directory of another one: its folds would be mixed up
        settings = dict(self.config)
        settings.pop("benchmark_performance")  # it does not change the result
        identity = {
            **settings,
            "num_classes": self.num_classes,
            "model": getattr(self.model_class, "__qualname__", repr(self.model_class)),
            "data": fingerprint_of(dataset),
            "labels": short_digest([labels.tobytes()]),
            "split": short_digest(
                f"{len(part)}:".encode() + part.tobytes() for fold in folds for part in fold
            ),
        }
        return FoldFiles(self.run_directory, identity)


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
