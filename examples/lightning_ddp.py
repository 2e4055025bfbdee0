"""Train in chunks with Lightning on two or more ranks, and resume exactly from a checkpoint.

One callback makes every chunk an epoch of Lightning, with a validation after each. The loaders find
their ranks themselves; Lightning adds no sampler, and no sample is delivered twice.

    python examples/lightning_ddp.py --dir run --devices 2          # Lightning starts the ranks
    torchrun --nproc-per-node=2 examples/lightning_ddp.py --dir run # torchrun does
    ... --chunks 4, and again with --chunks 8: continues where it ended, on any number of ranks
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import TensorDataset

from penstock import ChunkedDataLoader, ChunkedTraining

SAMPLES, INPUTS, GLOBAL_BATCH, CHUNK = 3_000, 16, 60, 20


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(INPUTS, 64), nn.Tanh(), nn.Linear(64, 1))
        self.register_buffer("sums", torch.zeros(2, dtype=torch.float64), persistent=False)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x).squeeze(1), y)

    def on_validation_epoch_start(self):
        self.sums.zero_()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        errors = (self.net(x).squeeze(1) - y).pow(2)
        self.sums += torch.stack([torch.tensor(len(errors)).to(errors), errors.sum()])

    def on_validation_epoch_end(self):
        samples, loss = self.trainer.strategy.reduce(self.sums, reduce_op="sum").tolist()
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            place = f"chunk {self.current_epoch + 1}"
            print(f"{place}: val loss {loss / samples:.6f} of {samples:.0f} samples", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def data(rows: int, seed: int) -> TensorDataset:
    weights = torch.randn(INPUTS, generator=torch.Generator().manual_seed(0))
    x = torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, torch.tanh(x @ weights))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", type=Path, required=True, help="for checkpoints")
    parser.add_argument("--devices", type=int, default=2, help="ranks on this machine")
    parser.add_argument("--chunks", type=int, default=8, help="chunks to train, over all runs")
    options = parser.parse_args()
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", options.devices))  # of torchrun
    batch = GLOBAL_BATCH // devices
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=devices,
        strategy="ddp",
        max_epochs=options.chunks,
        callbacks=[ChunkedTraining(), ModelCheckpoint(options.dir, save_last=True)],
        logger=False,
        enable_progress_bar=False,
    )
    last = options.dir / "last.ckpt"
    trainer.fit(
        Regression(),
        ChunkedDataLoader(data(SAMPLES, seed=1), batch, chunk_size=CHUNK),
        ChunkedDataLoader(data(501, seed=2), batch, evaluation=True),
        ckpt_path=last if last.exists() else None,
        weights_only=True if last.exists() else None,
    )


if __name__ == "__main__":
    main()
