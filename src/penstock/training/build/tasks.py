"""Tasks: what is learned, by which loss, and how it is scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from penstock.training.build.passing import accepted
from penstock.training.build.registries import tasks


@tasks.register("base")
class Task:
    """A loss and metrics; a subclass may bring an encoder and a decoder of its own.

    Args:
        loss: ``loss(outputs, targets)``; further things of a batch by name, if it takes them.
        loss_val: Another one for validation and test.
        metrics: By name: ``metric(outputs, targets)``, which may take the ``loss`` too.
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
        """Every metric of a batch."""
        given = extras | {"loss": loss}
        return {
            name: each(outputs, y, **accepted(each, given)) for name, each in self.metrics.items()
        }


@tasks.register("lm")
class LanguageModelling(Task):
    """Tokens in, tokens out: an embedding before the model, and a projection after it.

    Args:
        loss: By default cross entropy.
        tied: The projection is the embedding's own weights.
        rescale: Multiply embeddings by the root of their width.
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
        self.encoder = ScaledEmbedding(n_tokens, d_model, math.sqrt(d_model) if rescale else 1.0)
        self.decoder = nn.Linear(d_model, n_tokens)
        if tied:
            self.decoder.weight = self.encoder.weight


class ScaledEmbedding(nn.Embedding):
    """Vectors of tokens, times a factor."""

    def __init__(self, n_tokens: int, d_model: int, scale: float) -> None:
        super().__init__(n_tokens, d_model)
        self.scale = scale
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length) or (batch, length, 1) to (batch, length, d_model)."""
        x = x.squeeze(-1) if x.ndim == 3 and x.shape[-1] == 1 else x
        return super().forward(x) * self.scale
