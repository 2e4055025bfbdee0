"""One fold: trained until nothing gets better, then put back to where it was best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import nn

from penstock.arguments import real_number, shown, whole_number
from penstock.datasets.progress import progress_bar
from penstock.domains.folds.classification import (
    Evaluation,
    Scores,
    Stepping,
    evaluate,
    train_epoch,
)
from penstock.order import derive_key

CURVES = ("losses", "accuracies", "f1s")


@dataclass(frozen=True)
class Fold:
    """All that takes part in training one fold."""

    number: int
    model: nn.Module
    criterion: nn.Module
    optimizer: torch.optim.Optimizer
    train_batches: Callable[[int], Any]  # of an epoch
    val_batches: Any
    stepping: Stepping
    seed: int


def empty_history() -> dict[str, Any]:
    """The curves of a fold that has not begun."""
    curves: dict[str, Any] = {
        f"{part}_{curve}": [] for part in ("train", "val") for curve in CURVES
    }
    return curves | {"early_stopped": False, "best_epoch": 0, "total_epochs": 0}


@dataclass
class Standing:
    """How far a fold has come: the curves, and the best weights so far."""

    epoch: int = 0
    seconds: float = 0.0
    waited: int = 0  # epochs since the lowest validation loss
    best_loss: float = float("inf")
    best_weights: dict[str, Any] | None = None
    history: dict[str, Any] = field(default_factory=empty_history)

    def note(self, train: Scores, val: Scores, model: nn.Module) -> None:
        """An epoch is over; keep its weights where they are the best."""
        for part, scores in (("train", train), ("val", val)):
            for curve, value in zip(CURVES, (scores.loss, scores.accuracy, scores.f1), strict=True):
                self.history[f"{part}_{curve}"].append(value)
        self.waited += 1
        if val.loss < self.best_loss:
            self.best_loss, self.waited = val.loss, 0
            # a copy: a state dict holds the tensors that training goes on to change
            self.best_weights = deepcopy(model.state_dict())
            self.history["best_epoch"] = self.epoch
        self.epoch += 1
        self.history["total_epochs"] = self.epoch


def fit(
    fold: Fold,
    standing: Standing,
    config: Mapping[str, Any],
    save: Callable[[Standing], None],
    progress: bool | None,
) -> Evaluation:
    """Train a fold to its end, from wherever it is; the judgement of its best weights.

    Each epoch draws from generators keyed by (seed, fold, epoch), so that a resumed one repeats
    exactly what an uninterrupted one does.
    """
    patience, epochs = config["early_stopping"], config["num_epochs"]
    with progress_bar(f"fold {fold.number}", epochs, progress) as advance:
        advance(standing.epoch)
        while standing.epoch < epochs and not standing.history["early_stopped"]:
            begin = perf_counter()
            torch.manual_seed(derive_key(fold.seed, "fold", fold.number, "epoch", standing.epoch))
            batches = fold.train_batches(standing.epoch)
            train = train_epoch(fold.model, batches, fold.criterion, fold.optimizer, fold.stepping)
            val = evaluate(fold.model, fold.val_batches, fold.criterion, fold.stepping).scores
            standing.note(train, val, fold.model)
            standing.history["early_stopped"] = bool(patience) and standing.waited >= patience
            standing.seconds += perf_counter() - begin
            save(standing)
            advance(note=f"val loss {val.loss:.3f}, acc {val.accuracy:.3f}, f1 {val.f1:.3f}")
    if standing.best_weights is not None:
        fold.model.load_state_dict(standing.best_weights)
    return evaluate(fold.model, fold.val_batches, fold.criterion, fold.stepping)


def state_of(fold: Fold, standing: Standing) -> dict[str, Any]:
    """What a checkpoint of a fold holds: tensors and plain values."""
    return {
        "epoch": standing.epoch,
        "seconds": standing.seconds,
        "waited": standing.waited,
        "best_loss": standing.best_loss,
        "best_weights": standing.best_weights,
        "history": standing.history,
        "model": fold.model.state_dict(),
        "optimizer": fold.optimizer.state_dict(),
    }


def restore(fold: Fold, state: dict[str, Any]) -> Standing:
    """The standing of a checkpoint, with model and optimizer put where they were."""
    names = ("epoch", "seconds", "waited", "best_loss", "best_weights", "history")
    standing = Standing(**{name: state[name] for name in names})
    check_history(standing.history, standing.epoch)
    whole_number("epoch", standing.epoch, minimum=0)
    whole_number("waited", standing.waited, minimum=0)
    real_number("seconds", standing.seconds, minimum=0)
    if not isinstance(standing.best_loss, float):  # infinite before the first epoch
        raise TypeError(f"best_loss must be a float, found {standing.best_loss!r}")
    fold.model.load_state_dict(state["model"])
    fold.optimizer.load_state_dict(state["optimizer"])
    if standing.best_weights is not None:
        deepcopy(fold.model).load_state_dict(standing.best_weights)
    return standing


def check_history(history: Any, epochs: int) -> None:
    """Refuse curves that are not those of this number of epochs."""
    for name in empty_history():
        value = history[name]
        if isinstance(empty_history()[name], list):
            numbers = isinstance(value, list) and all(type(each) is float for each in value)
            if not numbers or len(value) != epochs:
                raise ValueError(f"{name} must be {epochs} numbers, found {shown(value)}")
        elif type(value) is not type(empty_history()[name]):
            raise TypeError(f"{name} must be a number, found {shown(value)}")
