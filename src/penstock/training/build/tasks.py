"""Built-in tasks, losses and metrics.

A loss or metric is a function of the model's outputs and the targets. Targets of -100 are padding
and are ignored. A metric may also take the ``loss``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.training.build.layers import EmbeddingEncoder
from penstock.training.build.module import accepted
from penstock.training.build.registries import losses, metrics, tasks

PADDING = -100


@tasks.register("base")
class Task:
    """A loss and metrics; a subclass may have an encoder and a decoder of its own.

    Args:
        loss: ``loss(outputs, targets)``; may take further entries of a batch by name.
        loss_val: Another one for validation and test.
        metrics: By name: ``metric(outputs, targets)``; may take the ``loss`` too.
    """

    encoder: nn.Module | None = None
    decoder: nn.Module | None = None

    def __init__(
        self,
        loss: Callable[..., Tensor],
        loss_val: Callable[..., Tensor] | None = None,
        metrics: Mapping[str, Callable[..., Tensor]] | None = None,
    ) -> None:
        self.loss, self.loss_val = loss, loss_val or loss
        self.metrics = dict(metrics or {})

    def scores(self, outputs: Tensor, y: Tensor, loss: Tensor, extras: Any) -> dict[str, Tensor]:
        """Return all metrics of a batch by name."""
        given = extras | {"loss": loss}
        return {
            name: each(outputs, y, **accepted(each, given)) for name, each in self.metrics.items()
        }


@tasks.register("lm")
class LanguageModelling(Task):
    """Predicts tokens from tokens: an embedding before the model, a projection after it.

    Args:
        loss: ``loss(outputs, targets)``; a configuration's default is cross entropy.
        n_tokens: Size of the vocabulary.
        d_model: Width of the model.
        tied: Use the embedding's weights for the projection.
        rescale: Multiply embeddings by the square root of their width.
        **scores: ``loss_val`` and ``metrics`` of `Task`.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        n_tokens: int,
        d_model: int,
        tied: bool = False,
        rescale: bool = True,
        **scores: Any,
    ) -> None:
        super().__init__(loss, **scores)
        self.encoder = EmbeddingEncoder(n_tokens, d_model, math.sqrt(d_model) if rescale else 1.0)
        self.decoder = nn.Linear(d_model, n_tokens)
        if tied:
            self.decoder.weight = self.encoder.weight


# -- losses


@losses.register("cross_entropy")
def cross_entropy(logits: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Return the cross entropy of class logits in the last axis."""
    return F.cross_entropy(*_flat(logits, y), ignore_index=PADDING, **options)


@losses.register("bce")
@losses.register("binary_cross_entropy")
def binary_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the binary cross entropy of one logit per target."""
    return F.binary_cross_entropy_with_logits(_squeezed(logits, y), y.float())


@losses.register("mse")
@metrics.register("mse")
def mse(outputs: Tensor, y: Tensor, lengths: Any = None) -> Tensor:
    """Return the mean squared error, of the first ``lengths`` steps of each sequence if given."""
    return F.mse_loss(*_unpadded(_squeezed(outputs, y), y, lengths))


@losses.register("mae")
@losses.register("l1")
@metrics.register("mae")
def mae(outputs: Tensor, y: Tensor, lengths: Any = None) -> Tensor:
    """Return the mean absolute error, of the first ``lengths`` steps of each sequence if given."""
    return F.l1_loss(*_unpadded(_squeezed(outputs, y), y, lengths))


def _flat(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return logits.reshape(-1, logits.shape[-1]), y.reshape(-1)


def _squeezed(outputs: Tensor, y: Tensor) -> Tensor:
    """Drop a last axis of 1 that the targets lack: else torch would broadcast the two."""
    return outputs.squeeze(-1) if outputs.ndim == y.ndim + 1 and outputs.shape[-1] == 1 else outputs


def _unpadded(outputs: Tensor, y: Tensor, lengths: Any) -> tuple[Tensor, Tensor]:
    if lengths is None or outputs.ndim < 2:
        return outputs, y.to(outputs.dtype)
    steps = torch.arange(outputs.shape[1], device=outputs.device)
    mask = steps < torch.as_tensor(lengths, device=outputs.device).unsqueeze(-1)
    return outputs[mask], y[mask].to(outputs.dtype)


# -- metrics


@metrics.register("accuracy")
def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the share of targets whose class has the largest logit."""
    return accuracy_among(logits, y, count=1)


def accuracy_among(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """Return the share of targets among the ``count`` largest logits (``accuracy@3``)."""
    logits, y = _flat(logits, y)
    logits, y = logits[y != PADDING], y[y != PADDING]
    best = logits.topk(min(count, logits.shape[-1])).indices
    return (best == y.unsqueeze(-1)).any(-1).float().mean()


@metrics.register("binary_accuracy")
def binary_accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the share of targets that the sign of their logit predicts."""
    return ((_squeezed(logits, y) >= 0) == y.bool()).float().mean()


@metrics.register("bpb")
def bits_per_byte(outputs: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """Return the loss in bits."""
    return torch.div(loss, math.log(2))


@metrics.register("ppl")
@metrics.register("perplexity")
def perplexity(outputs: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """Return the perplexity of the batch."""
    return torch.exp(loss)


@metrics.register("rmse")
def rmse(outputs: Tensor, y: Tensor, lengths: Any = None) -> Tensor:
    """Return the root of the batch's mean squared error."""
    return torch.sqrt(mse(outputs, y, lengths))
