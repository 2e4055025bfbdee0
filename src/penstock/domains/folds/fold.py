"""Training one fold: epochs with early stopping, best weights, checkpoints, the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from penstock.domains.folds.data import seek_epoch
from penstock.errors import BatchError, PlanError
from penstock.extras import progress_bar
from penstock.order import derive_key

log = logging.getLogger("penstock")

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
