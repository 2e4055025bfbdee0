"""Trains with Lightning, records what the weights have seen, and resumes: started by tests.

    python resume_program.py JOBS.json

Every job is a run: fresh, with a checkpoint written at every point there is, or resumed from each
checkpoint of another job's directory. Under ``devices=2`` Lightning starts this file once more.
"""

import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from penstock.integrations.lightning import ChunkedTraining
from penstock.loaders import ChunkedDataLoader

warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning on torch 2.13
warnings.filterwarnings("ignore", message=".*does not have many workers.*")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


def joined(ids):
    """The samples of all ranks, in the order of ranks."""
    if not dist.is_initialized():
        return ids.tolist()
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, ids.tolist())
    return [sample for part in parts for sample in part]


class Recorder(pl.LightningModule):
    """Keeps the events of a run that its weights, and thus its checkpoints, have behind them."""

    def __init__(self, job):
        super().__init__()
        self.job = job
        self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.events, self.pending, self.scored = [], [], []

    def loss(self, ids):
        return (self.weight - ids.double() / 100).pow(2).mean()

    def on_train_epoch_start(self):
        self.pending.append(["chunk", self.current_epoch])

    def training_step(self, ids, batch_idx):
        self.pending.append(["train", self.current_epoch, batch_idx, joined(ids)])
        return self.loss(ids)

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        self.write_diary()
        self.events, self.pending = self.events + self.pending, []

    def write_diary(self):
        """The samples of this step, in a file that outlives a kill."""
        if "diary" not in self.job:
            return
        step = self.trainer.global_step + 1
        with Path(self.job["diary"]).open("a") as diary:
            for _, _, _, samples in (event for event in self.pending if event[0] == "train"):
                diary.write(json.dumps([step, samples]) + "\n")
        if step == self.job.get("kill_at_step"):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_validation_epoch_start(self):
        self.scored = []

    def validation_step(self, ids, batch_idx):
        self.scored += joined(ids)
        self.log("val_loss", self.loss(ids).float(), sync_dist=True)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:  # after a batch that is not in the weights: not yet
            record = self.pending or self.events
            logged = self.trainer.fit_loop.epoch_loop._batches_that_stepped
            record.append(["validate", self.current_epoch, self.scored, logged])

    def on_train_epoch_end(self):
        self.events.append(["chunk ended", self.current_epoch])

    def on_save_checkpoint(self, checkpoint):
        checkpoint["events"] = list(self.events)

    def on_load_checkpoint(self, checkpoint):
        self.events = list(checkpoint["events"])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        chunkwise = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        schedulers = [{"scheduler": decay, "interval": "step"}, {"scheduler": chunkwise}]
        if self.job.get("plateau", True):
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.7, patience=0)
            schedulers.append({"scheduler": plateau, "monitor": "val_loss", "frequency": 1})
        return [optimizer], schedulers


class Everywhere(Checkpoint):
    """Writes a checkpoint at every point of a run where one can be written."""

    def __init__(self, directory, points=None):
        self.directory, self.points, self.written = Path(directory), points, 0

    def save(self, trainer, point):
        if trainer.sanity_checking or (self.points and point not in self.points):
            return
        trainer.save_checkpoint(self.directory / f"{self.written:03d}-{point}.ckpt")
        self.written += 1

    def on_train_batch_start(self, trainer, *_):
        self.save(trainer, "delivered")

    def on_train_batch_end(self, trainer, *_):
        self.save(trainer, "batch")

    def on_validation_start(self, trainer, *_):
        self.save(trainer, "validating")

    def on_validation_batch_end(self, trainer, *_):
        self.save(trainer, "scored")

    def on_validation_end(self, trainer, *_):
        self.save(trainer, "validated")

    def on_train_epoch_end(self, trainer, *_):
        self.save(trainer, "ended")

    def on_train_end(self, trainer, *_):
        self.save(trainer, "stopped")


def loaders(job):
    train = ChunkedDataLoader(
        torch.arange(job["samples"]),
        job["batch"],
        job["chunk"],
        shuffle=True,
        num_workers=job.get("workers", 0),
    )
    val = ChunkedDataLoader(
        torch.arange(1000, 1000 + job.get("val_samples", 5)),
        2,
        job.get("val_chunk"),
        evaluation="val_chunk" not in job,
    )
    return train, val


def savers(job, save_to):
    if "last" in job:  # the usual way
        return [ModelCheckpoint(job["last"], save_last=True, every_n_train_steps=1, save_top_k=1)]
    return [Everywhere(save_to, job.get("points"))] if save_to else []


def make_trainer(job, savers=(), callback=ChunkedTraining):
    options = {
        "devices": job.get("devices", 1),
        "strategy": "ddp" if job.get("devices", 1) > 1 else "auto",
        "enable_progress_bar": False,
        "enable_checkpointing": any(isinstance(saver, Checkpoint) for saver in savers),
        **job["trainer"],
    }
    return pl.Trainer(
        accelerator="cpu",
        callbacks=[callback(), *savers] if callback else [*savers],
        logger=False,
        enable_model_summary=False,
        **options,
    )


def fit(job, ckpt_path=None, save_to=None, callback=ChunkedTraining):
    """One run; what it did."""
    model, (train, val) = Recorder(job), loaders(job)
    trainer = make_trainer(job, savers(job, save_to), callback)
    trainer.fit(model, train, val, ckpt_path=ckpt_path, weights_only=True if ckpt_path else None)
    return {
        "events": model.events,
        "weight": model.weight.item(),
        "rates": [group["lr"] for group in trainer.optimizers[0].param_groups],
        "logged": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "steps": trainer.global_step,
        "epochs": trainer.current_epoch,
        "place": [train.state_dict()[name] for name in ("epoch", "position")],
        "world": trainer.world_size,
        "kept": trainer.train_dataloader is train,
    }


def run(job, callback=ChunkedTraining):
    """The results of a job: one, or one of each checkpoint it resumes."""
    if "resume_from" not in job:
        return {"fresh": fit(job, save_to=job.get("save_to"), callback=callback)}
    paths = chosen(job["resume_from"], job.get("of_each"))
    return {path.stem: fit(job, ckpt_path=str(path), callback=callback) for path in paths}


def chosen(directory, of_each=None):
    """The checkpoints in a directory: all of them, or some of each kind of point."""
    points = {}
    for path in sorted(Path(directory).glob("*.ckpt")):
        points.setdefault(path.stem[4:], []).append(path)
    spread = (paths[:: max(1, len(paths) // (of_each or len(paths)))] for paths in points.values())
    return [path for paths in spread for path in paths]


def main(jobs_file):
    results = [run(job) for job in json.loads(jobs_file.read_text())]
    if not dist.is_initialized() or dist.get_rank() == 0:
        jobs_file.with_suffix(".results").write_text(json.dumps(results))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        os._exit(0)  # gloo's threads sometimes abort an interpreter that ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
