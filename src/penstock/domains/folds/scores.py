"""Scores of predictions: loss, accuracy, F1, confusion matrices, votes of recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy, one_hot

from penstock.errors import PlanError


@dataclass(frozen=True, slots=True)
class Scores:
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


def confusion(
    predictions: torch.Tensor, targets: torch.Tensor, classes: int
) -> npt.NDArray[np.int64]:
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
    names = (
        ("accuracy", "accuracies", "final_val_acc"),
        ("loss", "losses", "final_val_loss"),
        ("f1", "f1s", "final_val_f1"),
    )
    for name, plural, key in names:
        values = [fold[key] for fold in folds]
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


def vote(
    logits: torch.Tensor, targets: torch.Tensor, recordings: npt.NDArray[Any]
) -> dict[str, Any]:
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
        "recording_predictions": {
            str(name): int(found) for name, found in zip(names, predictions, strict=True)
        },
    }
