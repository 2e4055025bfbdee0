"""Encoders and decoders: between data and model, and between model and targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError
from penstock.training.build.registries import decoders, encoders

MODES = ("last", "first", "pool", "sum")


@encoders.register("id")
@decoders.register("id")
class Identity(nn.Module):
    """What comes in, as it is."""

    def forward(self, x: Any) -> Any:
        """The same."""
        return x


@encoders.register("linear")
class LinearEncoder(nn.Linear):
    """Channels to the width of the model; values without a channel have one."""

    def __init__(self, d_input: int, d_model: int, bias: bool = True) -> None:
        super().__init__(d_input, d_model, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_input), or (batch, length) where that is 1, to (..., d_model)."""
        if self.in_features == 1 and (x.ndim < 2 or (x.ndim == 2 and x.shape[-1] != 1)):
            x = x.unsqueeze(-1)
        return super().forward(x.to(self.weight.dtype))


@encoders.register("embedding")
class EmbeddingEncoder(nn.Embedding):
    """Tokens to vectors of the width of the model."""

    def __init__(self, n_tokens: int, d_model: int) -> None:
        super().__init__(n_tokens, d_model)
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length) or (batch, length, 1) to (batch, length, d_model)."""
        return super().forward(x.squeeze(-1) if x.ndim == 3 and x.shape[-1] == 1 else x)


@decoders.register("linear")
class LinearDecoder(nn.Linear):
    """The width of the model to as many outputs as the data asks for."""

    def __init__(self, d_model: int, d_output: int, bias: bool = True) -> None:
        super().__init__(d_model, d_output, bias)


@decoders.register("sequence")
class SequenceDecoder(nn.Module):
    """So many outputs for a sequence, from its last or first steps, or from means or sums.

    Args:
        d_model: Width of the model's output.
        d_output: Outputs a step; None: those of the model.
        l_output: Steps that are asked for; None: all there are; 0: one, without its axis.
        use_lengths: Look at each sequence only as far as ``lengths`` says.
        mode: ``last``, ``first``; ``pool``: the mean up to each of the last steps; ``sum``.
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
        """(batch, length, d_model) to (batch, l_output, d_output), or (batch, d_output)."""
        if self.use_lengths and lengths is not None:
            parts = zip(x, torch.as_tensor(lengths).tolist(), strict=True)
            x = torch.stack([self._restricted(part[:length]) for part, length in parts])
        else:
            x = self._restricted(x)
        found: Tensor = self.output(x.squeeze(-2) if self.l_output == 0 else x)
        return found

    def _restricted(self, x: Tensor) -> Tensor:
        steps = x.shape[-2] if self.l_output is None else max(1, self.l_output)
        if self.mode == "first":
            return x[..., :steps, :]
        if self.mode in ("pool", "sum"):
            x = x.cumsum(-2)
        if self.mode == "pool":
            x = x / torch.arange(1, x.shape[-2] + 1, device=x.device, dtype=x.dtype).unsqueeze(-1)
        return x[..., -steps:, :]
