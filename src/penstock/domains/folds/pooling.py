"""What all folds say together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy, one_hot

from penstock.domains.folds.classification import confusion, score
from penstock.errors import PlanError


def summarize_folds(folds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and deviation of the folds' scores, and the scores one by one."""
    summary: dict[str, Any] = {}
    names = {"accuracy": "final_val_acc", "loss": "final_val_loss", "f1": "final_val_f1"}
    for name, key in names.items():
        values = [fold[key] for fold in folds]
        summary[f"mean_val_{name}"] = float(np.mean(values))
        summary[f"std_val_{name}"] = float(np.std(values))
    for plural, key in zip(("accuracies", "losses", "f1s"), names.values(), strict=True):
        summary[f"individual_{plural}"] = [fold[key] for fold in folds]
    return summary


def pool(logits: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
    """One score and one confusion matrix of every fold's predictions together."""
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
    """The class that most segments of each recording vote for, and how good that is.

    A tie is decided by the segments' summed probabilities.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    >>> vote(logits, torch.tensor([1, 1, 0]), np.array(["a", "a", "b"]))["recording_predictions"]
    {'a': 0, 'b': 0}
    """
    names, inverse = np.unique(recordings, return_inverse=True)
    members = torch.from_numpy(inverse)
    votes = torch.zeros(len(names), logits.shape[1], dtype=torch.float64)
    votes.index_add_(0, members, one_hot(logits.argmax(1), logits.shape[1]).double())
    shares = torch.zeros_like(votes).index_add_(0, members, logits.double().softmax(1))
    tie_break = shares / (shares.sum(1, keepdim=True) + 1)  # below 1: it never outweighs a vote
    predictions, truth = (votes + tie_break).argmax(1), _truth(names, members, targets)
    scores = score(predictions, truth, 0.0)
    return {
        "recording_accuracy": scores.accuracy,
        "recording_f1": scores.f1,
        "recording_confusion_matrix": confusion(predictions, truth, logits.shape[1]),
        "recording_predictions": {
            str(name): int(found) for name, found in zip(names, predictions, strict=True)
        },
    }


def _truth(names: npt.NDArray[Any], members: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The class of each recording; one whose segments have two is refused."""
    truth = torch.zeros(len(names), dtype=torch.int64)
    truth[members] = targets
    odd = (truth[members] != targets).nonzero()
    if len(odd):
        raise PlanError(
            f"recording {names[members[odd[0, 0]]]!s} has segments of two classes: votes need one"
        )
    return truth
