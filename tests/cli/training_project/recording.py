"""A dataset and a model of a user's own, that keep which samples went into which step.

What happens in a run is written to the file DIARY, moment by moment; AT makes something of a
moment: ``AT="train-7:SIGTERM"`` has the process send itself that signal in the step after 7.
"""

import io
import os
import signal
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist


def first_rank():
    return not dist.is_initialized() or dist.get_rank() == 0


def happens(moment):
    """Write the moment down, and do what is to be done at it."""
    if not first_rank():
        return
    if "DIARY" in os.environ:
        with Path(os.environ["DIARY"]).open("a") as file:
            file.write(f"{moment}\n")
    deeds = dict(each.split(":") for each in os.environ.get("AT", "").split(",") if each)
    deed = deeds.get(moment)
    if deed == "raise":
        raise ValueError("the user's own model fails here")
    if deed == "CTRL_C":  # a terminal sends it to all there are: ranks, workers
        os.killpg(0, signal.SIGINT)
    elif deed == "PARENT":  # as a cluster ends a job
        os.kill(os.getppid(), signal.SIGTERM)
    elif deed is not None:
        os.kill(os.getpid(), getattr(signal, deed))


class HalfWritten:
    """`torch.save`, that stops in the middle of the file for a moment."""

    def __init__(self, save):
        self.save = save

    def __call__(self, state, file):
        whole = io.BytesIO()
        self.save(state, whole)
        if not isinstance(file, io.BytesIO) and "loops" in state:
            data = whole.getvalue()
            file.write(data[: len(data) // 2])
            file.flush()
            happens(f"writing-{state['global_step']}")
            file.write(data[len(data) // 2 :])
        else:
            file.write(whole.getvalue())


if {"DIARY", "AT"} & os.environ.keys() and not isinstance(torch.save, HalfWritten):
    torch.save = HalfWritten(torch.save)  # in a run, not where tests are collected


class Numbers(torch.utils.data.Dataset):
    """A sample is its own number."""

    def __init__(self, size, first=0):
        self.size, self.first = size, first

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor(self.first + index)

    def locate(self, index):
        return f"number {self.first + index}"


def joined(ids):
    """The samples of all ranks, in the order of ranks."""
    if not dist.is_initialized():
        return ids.tolist()
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, ids.tolist())
    return [sample for part in parts for sample in part]


class Recorder(pl.LightningModule):
    """Has dropout, a scheduler a step and one a chunk; `seen` is in its checkpoints."""

    def __init__(self, unsaveable=False, width=4, names=("weight",), optimizer="Adam"):
        super().__init__()
        self.optimizer = getattr(torch.optim, optimizer)
        for name in names:
            setattr(self, name, torch.nn.Parameter(torch.randn(width, dtype=torch.float64)))
        self.dropout = torch.nn.Dropout(0.3)
        self.unsaveable = unsaveable
        self.seen, self.pending = [], []

    def loss(self, ids):
        return (self.dropout(self.weight) - ids.double().mean() / 100).pow(2).mean()

    def training_step(self, ids, batch_idx):
        happens(f"train-{self.global_step}")
        happens(f"batch-{self.trainer.fit_loop.total_batch_idx}")
        self.pending += joined(ids)
        loss = self.loss(ids)
        self.log("loss", loss.float())
        return loss

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        self.seen.append(self.pending)
        self.pending = []

    def validation_step(self, ids, batch_idx):
        sanity = self.trainer.sanity_checking
        happens("sanity" if sanity else f"validate-{self.global_step}-{batch_idx}")
        self.log("val/loss", self.loss(ids).float(), sync_dist=True)

    def on_train_epoch_end(self):
        happens(f"ended-{self.global_step}")

    def on_save_checkpoint(self, checkpoint):
        happens(f"save-{self.global_step}")
        checkpoint["seen"] = [list(samples) for samples in self.seen]
        if self.unsaveable:
            checkpoint["place"] = Path("x")

    def on_load_checkpoint(self, checkpoint):
        self.seen = [list(samples) for samples in checkpoint["seen"]]

    def configure_optimizers(self):
        optimizer = self.optimizer(self.parameters(), lr=0.05)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        chunkwise = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        return [optimizer], [{"scheduler": decay, "interval": "step"}, {"scheduler": chunkwise}]


class PackedRecorder(Recorder):
    """Keeps the tokens of packed sequences."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch["tokens"][batch["segment_ids"] > 0], batch_idx)
