"""The demo's model, which counts what it sees."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import nn

from penstock.extras import optional

lightning = optional("lightning.pytorch", extra="train")


class DemoModel(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A small regression that knows which samples are in its weights, and in which order.

    Args:
        kill_at: Kill this process after so many steps.
    """

    times_seen: torch.Tensor
    digest: torch.Tensor

    def __init__(self, samples: int, features: int, kill_at: int | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 32), nn.Tanh(), nn.Linear(32, 1))
        self.kill_at = kill_at
        self.register_buffer("times_seen", torch.zeros(samples, dtype=torch.int64))
        self.register_buffer("digest", torch.zeros((), dtype=torch.int64))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of a batch."""
        return self._loss(batch)

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        """Log the loss."""
        self.log("val/loss", self._loss(batch), batch_size=len(batch["y"]), prog_bar=True)

    def _loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.mse_loss(self.layers(batch["x"])[:, 0], batch["y"])

    def on_train_batch_end(
        self, outputs: Any, batch: dict[str, torch.Tensor], batch_idx: int
    ) -> None:
        """These samples are in the weights."""
        index = batch["index"]
        self.times_seen[index] += 1
        place = torch.arange(1, len(index) + 1)
        self.digest.mul_(1_000_003).add_((place * index).sum())  # wraps: another order, another sum
        if self.trainer.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
