"""Built-in models, encoders (from data to model) and decoders (from model to targets)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError
from penstock.training.build.registries import decoders, encoders, models

MODES = ("last", "first", "pool", "sum")


@models.register("lstm")
class SequenceLSTM(nn.Module):
    """An LSTM over (batch, length, d_model)."""

    def __init__(self, d_model: int, n_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.d_model = self.d_output = d_model
        self.rnn = nn.LSTM(d_model, d_model, n_layers, batch_first=True, dropout=dropout)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return the outputs of all steps, and the state after the last."""
        outputs, state = self.rnn(x, state)
        return outputs, state


@encoders.register("id")
@decoders.register("id")
class Identity(nn.Module):
    """Returns its input."""

    def forward(self, x: Any) -> Any:
        """Return ``x``."""
        return x


@encoders.register("linear")
class LinearEncoder(nn.Linear):
    """A linear layer from channels to the width of the model."""

    def __init__(self, d_input: int, d_model: int, bias: bool = True) -> None:
        super().__init__(d_input, d_model, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_input), or (batch, length) where d_input is 1, to (..., d_model)."""
        if self.in_features == 1 and (x.ndim < 2 or (x.ndim == 2 and x.shape[-1] != 1)):
            x = x.unsqueeze(-1)
        return super().forward(x.to(self.weight.dtype))


@encoders.register("embedding")
class EmbeddingEncoder(nn.Embedding):
    """An embedding of tokens in the width of the model.

    Args:
        n_tokens: Size of the vocabulary.
        d_model: Width of the model.
        scale: Factor of the vectors.
    """

    def __init__(self, n_tokens: int, d_model: int, scale: float = 1.0) -> None:
        super().__init__(n_tokens, d_model)
        self.scale = scale
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length) or (batch, length, 1) to (batch, length, d_model)."""
        x = super().forward(x.squeeze(-1) if x.ndim == 3 and x.shape[-1] == 1 else x)
        return x if self.scale == 1.0 else x * self.scale


@decoders.register("linear")
class LinearDecoder(nn.Linear):
    """A linear layer from the width of the model to the outputs that the data needs."""

    def __init__(self, d_model: int, d_output: int, bias: bool = True) -> None:
        super().__init__(d_model, d_output, bias)


@decoders.register("sequence")
class SequenceDecoder(nn.Module):
    """Outputs for some steps of a sequence.

    Args:
        d_model: Width of the model's output.
        d_output: Outputs per step; None: those of the model.
        l_output: Number of steps; None: all; 0: one, without the axis of steps.
        use_lengths: Use each sequence only up to its entry in ``lengths``.
        mode: Which steps: ``"last"`` or ``"first"``; or the last steps of the running mean
            (``"pool"``) or of the running sum (``"sum"``).
    """

    def __init__(
        self,
        d_model: int,
        d_output: int | None = None,
        l_output: int | None = None,
        use_lengths: bool = False,
        mode: str = "last",
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self.l_output, self.use_lengths, self.mode = l_output, use_lengths, mode
        self.output = nn.Identity() if d_output is None else nn.Linear(d_model, d_output)

    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        """Map (batch, length, d_model) to (batch, l_output, d_output), or (batch, d_output)."""
        if self.use_lengths and lengths is not None:
            rows = zip(x, torch.as_tensor(lengths).tolist(), strict=True)
            x = torch.stack([self._select_steps(row[:length]) for row, length in rows])
        else:
            x = self._select_steps(x)
        found: Tensor = self.output(x.squeeze(-2) if self.l_output == 0 else x)
        return found

    def _select_steps(self, x: Tensor) -> Tensor:
        steps = x.shape[-2] if self.l_output is None else max(1, self.l_output)
        if self.mode == "first":
            return x[..., :steps, :]
        if self.mode in ("pool", "sum"):
            x = x.cumsum(-2)
        if self.mode == "pool":
            x = x / torch.arange(1, x.shape[-2] + 1, device=x.device, dtype=x.dtype).unsqueeze(-1)
        return x[..., -steps:, :]
