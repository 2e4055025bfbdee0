"""The objects that the configurations name: a model, its encoder and its loss, for a CPU.

With 16 bits a softmax would have 65,536 outputs per step. A mixture of logistics has three for each
of its components, and neighbouring levels have similar probabilities.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from penstock.training.build import registries

LEVELS = 65_536


@registries.encoders.register("levels")
class LevelEncoder(nn.Linear):
    """Maps levels, scaled to [-1, 1], to the width of the model."""

    def __init__(self, d_model: int, n_tokens: int) -> None:
        super().__init__(1, d_model)
        self.n_tokens = n_tokens

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(scaled(x, self.n_tokens).reshape(*x.shape[:2], 1))


@registries.models.register("sashimi")
class SmallSashimi(nn.Module):
    """Causal convolutions, each reaching twice as far back as the one before."""

    def __init__(self, d_model: int, n_layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.d_model = self.d_output = d_model
        self.layers = nn.ModuleList(
            nn.Conv1d(d_model, d_model, 2, dilation=2**each) for each in range(n_layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        for layer in self.layers:
            past = F.pad(x, (layer.dilation[0], 0))
            x = x + self.dropout(F.gelu(layer(past)))
        return x.transpose(1, 2)


@registries.losses.register("dml")
def mixture_of_logistics(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss in nats per step: minus the log of the probability of each level."""
    weights, means, log_scales = outputs.chunk(3, dim=-1)
    x, half = scaled(y, LEVELS).reshape(*outputs.shape[:2], 1), 1 / (LEVELS - 1)
    sharpness = torch.exp(-log_scales.clamp(-9, 3))
    above = torch.sigmoid(sharpness * (x - means + half)).where(x < 1 - half, torch.tensor(1.0))
    below = torch.sigmoid(sharpness * (x - means - half)).where(x > half - 1, torch.tensor(0.0))
    mass = (above - below).clamp_min(1e-12).log()
    return -torch.logsumexp(F.log_softmax(weights, dim=-1) + mass, dim=-1).mean()


def scaled(levels: Tensor, n_tokens: int) -> Tensor:
    """Return levels 0 .. n_tokens - 1 as numbers from -1 to 1."""
    return 2 * levels.float() / (n_tokens - 1) - 1
