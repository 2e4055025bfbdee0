"""Training a classifier for an epoch, and judging it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from penstock.errors import BatchError, PlanError


@dataclass(frozen=True, slots=True)
class Scores:
    """Loss, accuracy and macro F1."""

    loss: float
    accuracy: float
    f1: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of a whole part, and the logits and classes they come from, in order."""

    scores: Scores
    logits: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True, slots=True)
class Stepping:
    """How a step is taken: where, in which precision, how far at most."""

    device: torch.device
    mixed_precision: bool = False
    gradient_clipping: float = 0.0

    def forward(self, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """The logits of a batch, float32."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed_precision):
            logits: torch.Tensor = model(x)
        return logits.float()


def train_epoch(
    model: nn.Module,
    batches: Iterable[Any],
    criterion: nn.Module,
    optimizer: torch.optim.Optimizer,
    stepping: Stepping,
) -> Scores:
    """Train on every batch; the scores of the batches as they were met."""
    model.train()
    losses, predictions, targets = [], [], []
    for x, y in batches:
        x, y = x.to(stepping.device), y.to(stepping.device)
        logits = stepping.forward(model, x)
        loss = criterion(logits, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if stepping.gradient_clipping:
            nn.utils.clip_grad_norm_(model.parameters(), stepping.gradient_clipping)
        optimizer.step()
        losses.append(loss.detach() * len(y))
        predictions.append(logits.detach().argmax(1))
        targets.append(y)
    if not losses:
        raise BatchError("the training loader gave no batch: lower batch_size")
    return score(torch.cat(predictions), torch.cat(targets), float(torch.stack(losses).sum()))


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[Any], criterion: nn.Module, stepping: Stepping
) -> Evaluation:
    """Judge every sample of a part; the loss is that of the part as one batch."""
    model.eval()
    found = [(stepping.forward(model, x.to(stepping.device)).cpu(), y) for x, y in batches]
    if not found:
        raise BatchError("the validation loader gave no batch: its part is empty")
    logits, targets = torch.cat([each[0] for each in found]), torch.cat([each[1] for each in found])
    loss = criterion(logits.to(stepping.device), targets.to(stepping.device)).item()
    scores = score(logits.argmax(1), targets, loss * len(targets))
    return Evaluation(scores, logits, targets)


def score(predictions: torch.Tensor, targets: torch.Tensor, loss_sum: float) -> Scores:
    """The scores of predicted classes; F1 is the mean over those that occur or are predicted.

    >>> score(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]), loss_sum=2.0)
    Scores(loss=0.5, accuracy=0.75, f1=0.7333333333333334)
    """
    classes = int(max(predictions.max(), targets.max())) + 1
    table = confusion(predictions.cpu(), targets.cpu(), classes)
    right, met = table.diagonal(), table.sum(axis=0) + table.sum(axis=1)
    f1 = 2 * right[met > 0] / met[met > 0]
    total = int(table.sum())
    return Scores(loss_sum / total, float(right.sum() / total), float(f1.mean()))


def confusion(
    predictions: torch.Tensor, targets: torch.Tensor, classes: int
) -> npt.NDArray[np.int64]:
    """How often each class (row) was taken for each other (column).

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    pairs = targets * classes + predictions
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes).numpy()


def balanced_weights(labels: npt.NDArray[np.int64], classes: int) -> torch.Tensor:
    """The weight of each class that makes all count alike; 1 for a class that is not there.

    >>> balanced_weights(np.array([0, 0, 0, 1]), 3).tolist()
    [0.6666666865348816, 2.0, 1.0]
    """
    counts = np.bincount(labels, minlength=classes)
    present = counts > 0
    weights = np.ones(classes)
    weights[present] = len(labels) / (present.sum() * counts[present])
    return torch.tensor(weights, dtype=torch.float32)


def check_labels(labels: npt.NDArray[np.int64], classes: int) -> None:
    """Refuse labels that are not in ``range(classes)``."""
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise PlanError(f"labels must be in [0, {classes}) for num_classes={classes}, got {wrong}")
