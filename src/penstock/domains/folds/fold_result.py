"""What is told of a fold, and how it is kept."""

from __future__ import annotations

import logging
from typing import Any

import torch

from penstock.arguments import shown
from penstock.domains.folds.classification import Evaluation, confusion
from penstock.domains.folds.fold import Fold, Standing, check_history

log = logging.getLogger("penstock")


def fold_result(fold: Fold, standing: Standing, evaluation: Evaluation) -> dict[str, Any]:
    """The curves, scores, predictions and weights of a fold that is trained."""
    history, scores = standing.history, evaluation.scores
    classes = evaluation.logits.shape[1]
    told = f"loss {scores.loss:.4f}, accuracy {scores.accuracy:.4f}, f1 {scores.f1:.4f}"
    best = history["best_epoch"] + 1
    log.info("fold %d: %d epochs, best after %d: %s", fold.number, standing.epoch, best, told)
    return {
        "history": history,
        "final_val_acc": scores.accuracy,
        "final_val_loss": scores.loss,
        "final_val_f1": scores.f1,
        "best_val_acc": max(history["val_accuracies"]),
        "best_val_f1": max(history["val_f1s"]),
        "model_state": {k: v.cpu().clone() for k, v in fold.model.state_dict().items()},
        "confusion_matrix": confusion(evaluation.logits.argmax(1), evaluation.targets, classes),
        "val_predictions": evaluation.logits,
        "val_targets": evaluation.targets,
        "training_time": standing.seconds,
    }


def for_store(result: dict[str, Any]) -> dict[str, Any]:
    """A result as tensors and plain values, which load without running anything."""
    return result | {"confusion_matrix": torch.from_numpy(result["confusion_matrix"])}


def from_store(result: dict[str, Any]) -> dict[str, Any]:
    """The result that was kept."""
    for name in ("val_predictions", "val_targets", "confusion_matrix"):
        if not isinstance(result[name], torch.Tensor):
            raise TypeError(f"{name} must be a tensor, found {shown(result[name])}")
    for name in ("final_val_acc", "final_val_loss", "final_val_f1", "best_val_acc", "best_val_f1"):
        if type(result[name]) is not float:
            raise TypeError(f"{name} must be a number, found {shown(result[name])}")
    check_history(result["history"], len(result["history"]["val_losses"]))
    return result | {"confusion_matrix": result["confusion_matrix"].numpy()}
