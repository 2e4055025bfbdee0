"""Lightning, with what the guide's module leaves to its reader: a step, an optimizer, an end."""

from __future__ import annotations

from functools import partial

import pytorch_lightning as pl
import torch

Trainer = partial(
    pl.Trainer,
    max_epochs=2,
    limit_train_batches=2,
    limit_val_batches=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)


class LightningModule(pl.LightningModule):
    """The rest of the guide's ``MyLightningModule``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.ones(1)), []

    def training_step(self, batch, _):
        self.seen.append(batch["labels"].tolist())
        return self.weight.sum()

    def validation_step(self, batch, _):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
