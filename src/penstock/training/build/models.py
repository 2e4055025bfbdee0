"""A model to begin with; yours come by ``_target_``, or by a name of your own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from penstock.training.build.registries import models


@models.register("lstm")
class SequenceLSTM(nn.Module):
    """An LSTM over (batch, length, d_model), as wide as it is deep."""

    def __init__(self, d_model: int, n_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.d_model = self.d_output = d_model
        self.rnn = nn.LSTM(d_model, d_model, n_layers, batch_first=True, dropout=dropout)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Outputs of every step, and the state after the last."""
        outputs, state = self.rnn(x, state)
        return outputs, state
