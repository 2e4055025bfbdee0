"""Losses and metrics: functions of what the model says and what is true.

Targets of -100 are padding, and count for nothing. A metric may also take the ``loss``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.training.build.registries import losses, metrics

PADDING = -100


def flat(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of logits and the class of each."""
    return logits.reshape(-1, logits.shape[-1]), y.reshape(-1)


@losses.register("cross_entropy")
def cross_entropy(logits: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Of class logits in the last axis."""
    return F.cross_entropy(*flat(logits, y), ignore_index=PADDING, **options)


@losses.register("bce")
@losses.register("binary_cross_entropy")
def binary_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Of one logit for each target."""
    return F.binary_cross_entropy_with_logits(_alike(logits, y), y.float())


@losses.register("mse")
@metrics.register("mse")
def mse(outputs: Tensor, y: Tensor, lengths: Any = None) -> Tensor:
    """Mean squared error, of the first ``lengths`` steps of each sequence if that is known."""
    return F.mse_loss(*_within(_alike(outputs, y), y, lengths))


@losses.register("mae")
@losses.register("l1")
@metrics.register("mae")
def mae(outputs: Tensor, y: Tensor, lengths: Any = None) -> Tensor:
    """Mean absolute error, of the first ``lengths`` steps of each sequence if that is known."""
    return F.l1_loss(*_within(_alike(outputs, y), y, lengths))


def _alike(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs without a last axis of 1 that the targets lack: else torch would pair them all."""
    return outputs.squeeze(-1) if outputs.ndim == y.ndim + 1 and outputs.shape[-1] == 1 else outputs


def _within(outputs: Tensor, y: Tensor, lengths: Any) -> tuple[Tensor, Tensor]:
    if lengths is None or outputs.ndim < 2:
        return outputs, y.to(outputs.dtype)
    steps = torch.arange(outputs.shape[1], device=outputs.device)
    mask = steps < torch.as_tensor(lengths, device=outputs.device).unsqueeze(-1)
    return outputs[mask], y[mask].to(outputs.dtype)


# -- metrics


@metrics.register("accuracy")
def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Share of targets whose class has the largest logit."""
    return accuracy_among(logits, y, count=1)


def accuracy_among(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """Share of targets whose class is among the ``count`` largest logits (``accuracy@3``)."""
    logits, y = flat(logits, y)
    logits, y = logits[y != PADDING], y[y != PADDING]
    best = logits.topk(min(count, logits.shape[-1])).indices
    return (best == y.unsqueeze(-1)).any(-1).float().mean()


@metrics.register("binary_accuracy")
def binary_accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Share of targets on the side of their logit."""
    return ((_alike(logits, y) >= 0) == y.bool()).float().mean()


@metrics.register("bpb")
def bits_per_byte(outputs: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """The loss, in bits."""
    return torch.div(loss, math.log(2))


@metrics.register("ppl")
@metrics.register("perplexity")
def perplexity(outputs: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """Of the batch."""
    return torch.exp(loss)


@metrics.register("rmse")
def rmse(outputs: Tensor, y: Tensor, lengths: Any = None) -> Tensor:
    """Root of the batch's mean squared error."""
    return torch.sqrt(mse(outputs, y, lengths))
