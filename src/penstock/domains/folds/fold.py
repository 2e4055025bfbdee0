"""Training one fold: epochs with early stopping, best weights, checkpoints, the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import nn

from penstock.arguments import real_number, shown, whole_number
from penstock.domains.folds.data import seek_epoch
from penstock.domains.folds.scores import Scores, confusion, score
from penstock.errors import BatchError
from penstock.order import derive_key
from penstock.progress import progress_bar

log = logging.getLogger("penstock")

CURVES = ("losses", "accuracies", "f1s")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of a whole part, and the logits and classes they were computed from, in order."""

    scores: Scores
    logits: torch.Tensor
    targets: torch.Tensor


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

    def train_batches(self, epoch: int) -> Iterable[Any]:
        """Return the training batches of an epoch, independent of what was read before."""
        batches: Iterable[Any] = seek_epoch(self.train_loader, epoch, self.config["seed"])
        return batches

    def train_epoch(self, epoch: int) -> Scores:
        """Train on every batch of an epoch; return the scores at the time of training."""
        # keyed by fold and epoch, so that a resumed epoch repeats what an uninterrupted one does
        torch.manual_seed(derive_key(self.config["seed"], "fold", self.number, "epoch", epoch))
        self.model.train()
        losses, predictions, targets = [], [], []
        for x, y in self.train_batches(epoch):
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
    def evaluate(self) -> Evaluation:
        """Evaluate the validation part; the loss is that of the part as one batch."""
        self.model.eval()
        found = [(self._forward(x.to(self.device)).cpu(), y) for x, y in self.val_loader]
        if not found:
            raise BatchError("the validation loader yields no batch: its part is empty")
        logits, targets = (torch.cat(each) for each in zip(*found, strict=True))
        loss = self.criterion(logits.to(self.device), targets.to(self.device)).item()
        scores = score(logits.argmax(1), targets, loss * len(targets))
        return Evaluation(scores, logits, targets)

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.config["mixed_precision"]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
            logits: torch.Tensor = self.model(x)
        return logits.float()


def _empty_history() -> dict[str, Any]:
    curves: dict[str, Any] = {
        f"{part}_{curve}": [] for part in ("train", "val") for curve in CURVES
    }
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
            for curve, value in zip(CURVES, (scores.loss, scores.accuracy, scores.f1), strict=True):
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
            val = fold.evaluate().scores
            progress.record(train, val, fold.model)
            progress.history["early_stopped"] = bool(patience) and progress.waited >= patience
            progress.seconds += perf_counter() - begin
            save(
                {
                    **vars(progress),
                    "model": fold.model.state_dict(),
                    "optimizer": fold.optimizer.state_dict(),
                }
            )
            advance(note=f"val loss {val.loss:.3f}, acc {val.accuracy:.3f}, f1 {val.f1:.3f}")
    if progress.best_weights is not None:
        fold.model.load_state_dict(progress.best_weights)
    return _result(fold, progress, fold.evaluate())


def restore(fold: Fold, state: dict[str, Any]) -> Progress:
    """Load a checkpoint into the model and the optimizer; return how far it was trained."""
    progress = Progress(**{name: state[name] for name in vars(Progress())})
    _check_history(progress.history, progress.epoch)
    whole_number("epoch", progress.epoch, minimum=0)
    whole_number("waited", progress.waited, minimum=0)
    real_number("seconds", progress.seconds, minimum=0)
    if not isinstance(progress.best_loss, float):  # infinite before the first epoch
        raise TypeError(f"best_loss must be a float, found {progress.best_loss!r}")
    fold.model.load_state_dict(state["model"])
    fold.optimizer.load_state_dict(state["optimizer"])
    if progress.best_weights is not None:
        deepcopy(fold.model).load_state_dict(progress.best_weights)  # raises if they do not fit
    return progress


def _check_history(history: Any, epochs: int) -> None:
    for name, empty in _empty_history().items():
        value = history[name]
        if isinstance(empty, list):
            numbers = isinstance(value, list) and all(type(each) is float for each in value)
            if not numbers or len(value) != epochs:
                raise ValueError(f"{name} must be {epochs} numbers, found {shown(value)}")
        elif type(value) is not type(empty):
            raise TypeError(f"{name} must be a number, found {shown(value)}")


# -- the result


def _result(fold: Fold, progress: Progress, evaluation: Evaluation) -> dict[str, Any]:
    """Return the curves, scores, predictions and weights of a trained fold."""
    history, scores = progress.history, evaluation.scores
    log.info(
        "fold %d: %d epochs, best after %d: loss %.4f, accuracy %.4f, f1 %.4f",
        *(fold.number, progress.epoch, history["best_epoch"] + 1),
        *(scores.loss, scores.accuracy, scores.f1),
    )
    predictions, classes = evaluation.logits.argmax(1), evaluation.logits.shape[1]
    return {
        "history": history,
        "final_val_acc": scores.accuracy,
        "final_val_loss": scores.loss,
        "final_val_f1": scores.f1,
        "best_val_acc": max(history["val_accuracies"]),
        "best_val_f1": max(history["val_f1s"]),
        "model_state": {k: v.cpu().clone() for k, v in fold.model.state_dict().items()},
        "confusion_matrix": confusion(predictions, evaluation.targets, classes),
        "val_predictions": evaluation.logits,
        "val_targets": evaluation.targets,
        "training_time": progress.seconds,
    }


def result_to_state(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result as tensors and plain values, which can be loaded without running code."""
    return result | {"confusion_matrix": torch.from_numpy(result["confusion_matrix"])}


def result_from_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return the result that was saved, after checking the types of its values."""
    for name in ("val_predictions", "val_targets", "confusion_matrix"):
        if not isinstance(state[name], torch.Tensor):
            raise TypeError(f"{name} must be a tensor, found {shown(state[name])}")
    for name in ("final_val_acc", "final_val_loss", "final_val_f1", "best_val_acc", "best_val_f1"):
        if type(state[name]) is not float:
            raise TypeError(f"{name} must be a number, found {shown(state[name])}")
    _check_history(state["history"], len(state["history"]["val_losses"]))
    return state | {"confusion_matrix": state["confusion_matrix"].numpy()}
