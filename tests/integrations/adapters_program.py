"""Trains in every loop there is an adapter for, stops in mid-epoch, resumes: started by tests.

python adapters_program.py DIRECTORY whole|begin|resume ...
"""

import json
import logging
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytorch_lightning
import torch
from accelerate import Accelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import Trainer, TrainerCallback, TrainingArguments

from penstock.datamodules import UniversalDataModule
from penstock.integrations.huggingface import TrainerLoader
from penstock.integrations.lightning import ChunkedTraining
from penstock.training import CheckpointManager

warnings.filterwarnings("ignore")  # of the frameworks, on this torch
for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "transformers"):
    logging.getLogger(name).setLevel(logging.ERROR)

SAMPLES, BATCH, EPOCHS = 46, 4, 3  # 37 to train on: 10 batches an epoch, the last one short
SAVED, STOPPED = 14, 17  # batches: in the midst of the second epoch
ACCUMULATED = 3  # batches, by transformers' Trainer; does not divide the epoch


def make_module(**options):
    rows = [{"ids": i} for i in range(SAMPLES)]
    return UniversalDataModule(rows, batch_size=BATCH, num_workers=0, seed=7, **options)


def make_weight():
    return torch.nn.Parameter(torch.ones(1, dtype=torch.float64))


def loss_of(weight, ids, noise=0):
    return (weight * (1 + noise) - ids.double() / 100).pow(2).mean()


class Model(torch.nn.Module):
    """Records the batches it is given."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = make_weight(), []

    def forward(self, ids):
        self.seen.append(ids.tolist())
        noise = 0.01 * torch.rand(1, dtype=torch.float64)  # as dropout: of the global generator
        return {"loss": loss_of(self.weight, ids, noise)}


def plain(directory, phase):
    """A loop of one's own, with `CheckpointManager`."""
    torch.manual_seed(0)
    model, module, first = Model(), make_module(), 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    manager = CheckpointManager(directory, monitor="loss")
    if phase == "resume":
        state = manager.load(manager.get_latest(), loaders=module)
        model.load_state_dict(state["model_state_dict"])
        optimizer.load_state_dict(state["optimizer_state_dict"])
        first = state["epoch"]
    for epoch in range(first, EPOCHS):
        for batch in module.train_dataloader():
            loss = model(**batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if phase == "begin" and len(model.seen) == SAVED:
                manager.save(model, optimizer, None, epoch, {"loss": loss}, loaders=module)
            if phase == "begin" and len(model.seen) == STOPPED:
                return model
    return model


class Recorder(pl.LightningModule):
    def __init__(self, data=None):
        super().__init__()
        self.weight, self.seen, self.scored, self.data = make_weight(), [], [], data

    def training_step(self, batch, _):
        self.seen.append(batch["ids"].tolist())  # no noise: Lightning saves no generators
        return loss_of(self.weight, batch["ids"])

    def validation_step(self, batch, _):
        if not self.trainer.sanity_checking:
            self.scored += batch["ids"].tolist()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


class Returning(Recorder):
    """A LightningModule that returns the data module's loaders."""

    def train_dataloader(self):
        return self.data.train_dataloader()

    def val_dataloader(self):
        return self.data.val_dataloader()


class OldRecorder(pytorch_lightning.LightningModule):
    training_step = Recorder.training_step
    validation_step = Recorder.validation_step
    configure_optimizers = Recorder.configure_optimizers

    def __init__(self):
        super().__init__()
        self.weight, self.seen, self.scored = make_weight(), [], []


def fit(directory, phase, model, callbacks, library=pl, saver=ModelCheckpoint, **data):
    torch.manual_seed(0)
    saving = saver(directory, "{step}", every_n_train_steps=SAVED, save_top_k=-1)
    trainer = library.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, saving] if phase == "begin" else callbacks,
        enable_checkpointing=phase == "begin",
        **({"max_steps": STOPPED} if phase == "begin" else {}),
    )
    path = str(Path(directory) / f"step={SAVED}.ckpt") if phase == "resume" else None
    trainer.fit(model, ckpt_path=path, **data)
    return model


def lightning(directory, phase):
    """The data module as it is."""
    return fit(directory, phase, Recorder(), [ChunkedTraining()], datamodule=make_module())


def lightning_alone(directory, phase):
    """Without our callback: a checkpoint in mid-epoch, without accumulation."""
    return fit(directory, phase, Recorder(), [], datamodule=make_module())


def lightning_hooks(directory, phase):
    return fit(directory, phase, Returning(make_module()), [ChunkedTraining()])


def pytorch_lightning_alone(directory, phase):
    """The same library by its other name."""
    saver = pytorch_lightning.callbacks.ModelCheckpoint
    return fit(
        directory, phase, OldRecorder(), [], pytorch_lightning, saver, datamodule=make_module()
    )


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= 7


class Fed(Trainer):
    def __init__(self, *args, data, **kwargs):
        super().__init__(*args, **kwargs)
        self.data = data

    def get_train_dataloader(self):
        return TrainerLoader(self.data.train_dataloader(), self)


def trainer(directory, phase, workers=0):
    """Hugging Face's, with accumulation that does not divide the epoch."""
    torch.manual_seed(0)
    model = Model()
    settings = TrainingArguments(
        output_dir=directory,
        num_train_epochs=EPOCHS,
        gradient_accumulation_steps=ACCUMULATED,
        save_steps=6,  # of 4 an epoch: in the midst of the second
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    stop = [Stop()] if phase == "begin" else []
    module = make_module()
    module.num_workers = workers
    with module:
        fed = Fed(model, settings, data=module, callbacks=stop)
        fed.train(resume_from_checkpoint=f"{directory}/checkpoint-6" if phase == "resume" else None)
    return model


def trainer_workers(directory, phase):
    return trainer(directory, phase, workers=1)


def accelerated(directory, phase):
    torch.manual_seed(0)
    accelerator, model = Accelerator(cpu=True), Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    module = make_module()
    model, optimizer, loader = accelerator.prepare(model, optimizer, module.train_dataloader())
    assert loader is module.train_dataloader()
    place = f"{directory}/state"
    if phase == "resume":
        accelerator.load_state(place)
    while loader.state_dict()["epoch"] < EPOCHS:
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if phase == "begin" and len(model.seen) == SAVED:
                accelerator.save_state(place)
            if phase == "begin" and len(model.seen) == STOPPED:
                return model
    return model


LOOPS = [
    plain,
    lightning,
    lightning_alone,
    lightning_hooks,
    pytorch_lightning_alone,
    trainer,
    trainer_workers,
    accelerated,
]


def run(phase, directory):
    results = {}
    for loop in LOOPS:
        model = loop(str(Path(directory) / loop.__name__), phase)
        scored = getattr(model, "scored", [])
        results[loop.__name__] = [model.seen, model.weight.item(), scored]
    Path(directory, f"{phase}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    for each in sys.argv[2:]:
        run(each, sys.argv[1])
