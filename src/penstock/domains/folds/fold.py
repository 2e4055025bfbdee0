"""One fold: its settings and data, training with early stopping, checkpoints, the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
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
from penstock.errors import BatchError, ConfigError, PlanError
from penstock.extras import progress_bar
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


Counts: TypeAlias = npt.NDArray[np.int64]
CURVES = ("losses", "accuracies", "f1s")


class Scores(NamedTuple):
    """Loss, accuracy and macro F1."""

    loss: float
    accuracy: float
    f1: float


def score(predictions: torch.Tensor, targets: torch.Tensor, loss_sum: float) -> Scores:
    """Return the scores of predicted classes.

    F1 is the mean over the classes that occur or are predicted.

    >>> score(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]), loss_sum=2.0)
    Scores(loss=0.5, accuracy=0.75, f1=0.7333333333333334)
    """
    classes = int(max(predictions.max(), targets.max())) + 1
    table = confusion(predictions.cpu(), targets.cpu(), classes)
    correct, occurring = table.diagonal(), table.sum(axis=0) + table.sum(axis=1)
    f1 = 2 * correct[occurring > 0] / occurring[occurring > 0]
    total = int(table.sum())
    return Scores(loss_sum / total, float(correct.sum() / total), float(f1.mean()))


def confusion(predictions: torch.Tensor, targets: torch.Tensor, classes: int) -> Counts:
    """Return how often each class (row) was predicted as each class (column).

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    pairs = targets * classes + predictions
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes).numpy()


def balanced_weights(labels: npt.NDArray[np.int64], classes: int) -> torch.Tensor:
    """Return class weights that give all classes the same total weight; 1 for absent classes.

    >>> balanced_weights(np.array([0, 0, 0, 1]), 3).tolist()
    [0.6666666865348816, 2.0, 1.0]
    """
    counts = np.bincount(labels, minlength=classes)
    present = counts > 0
    weights = np.ones(classes)
    weights[present] = len(labels) / (present.sum() * counts[present])
    return torch.tensor(weights, dtype=torch.float32)


def summarize_folds(folds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation of the folds' scores, and the individual scores."""
    summary: dict[str, Any] = {}
    names = {"acc": ("accuracy", "accuracies"), "loss": ("loss", "losses"), "f1": ("f1", "f1s")}
    for key, (name, plural) in names.items():
        values = [fold[f"final_val_{key}"] for fold in folds]
        summary[f"mean_val_{name}"] = float(np.mean(values))
        summary[f"std_val_{name}"] = float(np.std(values))
        summary[f"individual_{plural}"] = values
    return summary


def pool(logits: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
    """Return the scores and the confusion matrix of all folds' predictions together."""
    predictions = logits.argmax(1)
    scores = score(predictions, targets, cross_entropy(logits, targets).item() * len(targets))
    return {
        "aggregated_accuracy": scores.accuracy,
        "aggregated_loss": scores.loss,
        "aggregated_f1": scores.f1,
        "aggregated_confusion_matrix": confusion(predictions, targets, logits.shape[1]),
    }


def vote(logits: torch.Tensor, targets: torch.Tensor, recordings: Any) -> dict[str, Any]:
    """Return the class that most segments of each recording predict, and the scores of that.

    A tie is decided by the sum of the segments' probabilities.

    Raises:
        PlanError: A recording has segments of two classes.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    >>> vote(logits, torch.tensor([1, 1, 0]), np.array(["a", "a", "b"]))["recording_predictions"]
    {'a': 0, 'b': 0}
    """
    names, inverse = np.unique(recordings, return_inverse=True)
    members = torch.from_numpy(inverse)
    truth = torch.zeros(len(names), dtype=torch.int64)
    truth[members] = targets
    mixed = (truth[members] != targets).nonzero()
    if len(mixed):
        name = names[members[mixed[0, 0]]]
        raise PlanError(f"recording {name!s} has segments of two classes: votes need one class")
    votes = torch.zeros(len(names), logits.shape[1], dtype=torch.float64)
    votes.index_add_(0, members, one_hot(logits.argmax(1), logits.shape[1]).double())
    shares = torch.zeros_like(votes).index_add_(0, members, logits.double().softmax(1))
    tie_break = shares / (shares.sum(1, keepdim=True) + 1)  # below 1: never outweighs a vote
    predictions = (votes + tie_break).argmax(1)
    scores = score(predictions, truth, 0.0)
    return {
        "recording_accuracy": scores.accuracy,
        "recording_f1": scores.f1,
        "recording_confusion_matrix": confusion(predictions, truth, logits.shape[1]),
        "recording_predictions": dict(zip(map(str, names), predictions.tolist(), strict=True)),
    }


@dataclass(frozen=True)
class Fold:
    """Everything that takes part in training one fold."""

    number: int
    model: nn.Module
    criterion: nn.Module
    optimizer: torch.optim.Optimizer
    train_loader: Any
    val_loader: Any
    device: torch.device
    config: Mapping[str, Any]

    def train_epoch(self, epoch: int) -> Scores:
        """Train on every batch of an epoch; return the scores at the time of training."""
        # keyed by fold and epoch, so that a resumed epoch repeats what an uninterrupted one does
        torch.manual_seed(derive_key(self.config["seed"], "fold", self.number, "epoch", epoch))
        self.model.train()
        losses, predictions, targets = [], [], []
        for x, y in seek_epoch(self.train_loader, epoch, self.config["seed"]):
            x, y = x.to(self.device), y.to(self.device)
            logits = self._forward(x)
            loss = self.criterion(logits, y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if self.config["gradient_clipping"]:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.config["gradient_clipping"])
            self.optimizer.step()
            losses.append(loss.detach() * len(y))
            predictions.append(logits.detach().argmax(1))
            targets.append(y)
        if not losses:
            raise BatchError("the training loader yields no batch: lower batch_size")
        return score(torch.cat(predictions), torch.cat(targets), float(torch.stack(losses).sum()))

    @torch.no_grad()
    def evaluate(self) -> tuple[Scores, torch.Tensor, torch.Tensor]:
        """Return scores, logits and classes of the validation part; its loss is of one batch."""
        self.model.eval()
        found = [(self._forward(x.to(self.device)).cpu(), y) for x, y in self.val_loader]
        if not found:
            raise BatchError("the validation loader yields no batch: its part is empty")
        logits, targets = (torch.cat(each) for each in zip(*found, strict=True))
        loss = self.criterion(logits.to(self.device), targets.to(self.device)).item()
        return score(logits.argmax(1), targets, loss * len(targets)), logits, targets

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.config["mixed_precision"]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
            logits: torch.Tensor = self.model(x)
        return logits.float()


def _empty_history() -> dict[str, Any]:
    names = [f"{part}_{curve}" for part in ("train", "val") for curve in CURVES]
    curves: dict[str, Any] = {name: [] for name in names}
    return curves | {"early_stopped": False, "best_epoch": 0, "total_epochs": 0}


@dataclass
class Progress:
    """How far a fold is trained: the curves, and the best weights so far.

    The names of the fields are those of a checkpoint.
    """

    epoch: int = 0
    seconds: float = 0.0
    waited: int = 0  # epochs since the lowest validation loss
    best_loss: float = float("inf")
    best_weights: dict[str, Any] | None = None
    history: dict[str, Any] = field(default_factory=_empty_history)

    def record(self, train: Scores, val: Scores, model: nn.Module) -> None:
        """Add the scores of an epoch, and its weights if they are the best."""
        for part, scores in (("train", train), ("val", val)):
            for curve, value in zip(CURVES, scores, strict=True):
                self.history[f"{part}_{curve}"].append(value)
        self.waited += 1
        if val.loss < self.best_loss:
            self.best_loss, self.waited = val.loss, 0
            # a copy: a state dict refers to the tensors that training changes
            self.best_weights = deepcopy(model.state_dict())
            self.history["best_epoch"] = self.epoch
        self.epoch += 1
        self.history["total_epochs"] = self.epoch


def fit(
    fold: Fold,
    progress: Progress,
    save: Callable[[dict[str, Any]], None],
    show_progress: bool | None,
) -> dict[str, Any]:
    """Train a fold to its end, restore its best weights, and return its result.

    Args:
        fold: The fold to train.
        progress: How far it is trained already; updated.
        save: Called with a checkpoint after each epoch.
        show_progress: Show a progress bar. None shows it on a terminal.
    """
    patience, epochs = fold.config["early_stopping"], fold.config["num_epochs"]
    with progress_bar(f"fold {fold.number}", epochs, show_progress) as advance:
        advance(progress.epoch)
        while progress.epoch < epochs and not progress.history["early_stopped"]:
            begin = perf_counter()
            train = fold.train_epoch(progress.epoch)
            val, *_ = fold.evaluate()
            progress.record(train, val, fold.model)
            progress.history["early_stopped"] = bool(patience) and progress.waited >= patience
            progress.seconds += perf_counter() - begin
            states = {n: getattr(fold, n).state_dict() for n in ("model", "optimizer")}
            save({**vars(progress), **states})
            advance(note=f"val loss {val.loss:.3f}, acc {val.accuracy:.3f}, f1 {val.f1:.3f}")
    if progress.best_weights is not None:
        fold.model.load_state_dict(progress.best_weights)
    return _result(fold, progress)


def restore(fold: Fold, state: dict[str, Any]) -> Progress:
    """Load a checkpoint into the model and the optimizer; return how far it was trained."""
    progress = Progress(**{name: state[name] for name in vars(Progress())})
    fold.model.load_state_dict(state["model"])
    fold.optimizer.load_state_dict(state["optimizer"])
    return progress


# -- the result


def _result(fold: Fold, progress: Progress) -> dict[str, Any]:
    """Return the curves, scores, predictions and weights of a trained fold."""
    history, (scores, logits, targets) = progress.history, fold.evaluate()
    log.info(
        "fold %d: %d epochs, best after %d: loss %.4f, accuracy %.4f, f1 %.4f",
        *(fold.number, progress.epoch, history["best_epoch"] + 1, *scores),
    )
    return {
        "history": history,
        "final_val_acc": scores.accuracy,
        "final_val_loss": scores.loss,
        "final_val_f1": scores.f1,
        "best_val_acc": max(history["val_accuracies"]),
        "best_val_f1": max(history["val_f1s"]),
        "model_state": {k: v.cpu().clone() for k, v in fold.model.state_dict().items()},
        "confusion_matrix": confusion(logits.argmax(1), targets, logits.shape[1]),
        "val_predictions": logits,
        "val_targets": targets,
        "training_time": progress.seconds,
    }
