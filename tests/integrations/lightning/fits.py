"""Real Trainers on tiny data that keep what arrived: shared by the tests of this directory."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from penstock.integrations.lightning import ChunkedTraining

LOGGERS = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning")


class Recorder(pl.LightningModule):
    """Keeps the samples of every chunk and of every validation."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.chunks, self.validations, self.sanity, self.tested, self.rates = [], [], [], [], []

    def on_train_epoch_start(self):
        self.chunks.append([])

    def training_step(self, batch, batch_idx):
        ids = batch[0]
        if not self.chunks:  # resumed inside one: it began in another run
            self.chunks.append([])
        self.chunks[-1].append(ids.tolist())
        return (self.weight - ids.float().mean()).pow(2).mean()

    def on_validation_epoch_start(self):
        (self.sanity if self.trainer.sanity_checking else self.validations).append([])

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        ids = batch[0]
        (self.sanity if self.trainer.sanity_checking else self.validations)[-1].append(ids.tolist())
        self.log("val/loss", ids.float().mean(), batch_size=len(ids))

    def test_step(self, batch, batch_idx):
        self.tested.append(batch[0].tolist())

    def on_train_epoch_end(self):
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def ids(count, start=0):
    return TensorDataset(torch.arange(start, start + count))


@dataclass
class Run:
    """A model, its trainer and its callback, after a fit."""

    model: Recorder
    trainer: pl.Trainer
    callback: ChunkedTraining | None
    loaders: list = field(default_factory=list)

    @property
    def train_batches(self):
        """Batches of every chunk."""
        return [len(chunk) for chunk in self.model.chunks]

    @property
    def val_batches(self):
        """Batches of every validation."""
        return [len(batches) for batches in self.model.validations]

    @property
    def seen(self):
        """Training samples, in the order they came."""
        return [x for chunk in self.model.chunks for batch in chunk for x in batch]

    @property
    def scored(self):
        """Samples of every validation."""
        return [[x for batch in each for x in batch] for each in self.model.validations]


def make_trainer(callbacks=(), **options):
    for name in LOGGERS:  # here, because each sets its level when it is imported
        logging.getLogger(name).setLevel(logging.ERROR)
    quiet = {"enable_progress_bar": False, "logger": False, "enable_checkpointing": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 2}
    return pl.Trainer(callbacks=list(callbacks), **{**quiet, **options})


def fit(callback, train=None, val=None, *, callbacks=(), data=None, ckpt_path=None, **options):
    """One run: stock loaders of 22 and 9 samples, batches of 2, unless others are given."""
    if data is None:
        train = stock(22) if train is None else train
        val = stock(9, start=1000) if val is None else val
    model = Recorder()
    trainer = make_trainer([*([callback] if callback else []), *callbacks], **options)
    weights_only = None if ckpt_path is None else True
    trainer.fit(model, train, val, datamodule=data, ckpt_path=ckpt_path, weights_only=weights_only)
    return Run(model, trainer, callback, [train, val])


def stock(samples, start=0, batch=2, **options):
    return DataLoader(ids(samples, start), batch_size=batch, **options)
