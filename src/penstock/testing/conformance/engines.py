"""The trainers that Penstock is tested with, each as a small program for `conformance`.

Copy them for your own programs: each trains, validates after every chunk, saves and resumes in the
way that its documentation recommends.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.nn.parallel import DistributedDataParallel

from penstock.extras import optional
from penstock.integrations.huggingface import TrainerLoader
from penstock.integrations.ray import RayTraining
from penstock.ranks import current_topology
from penstock.testing.conformance.launches import (
    TIMEOUT_SECONDS,
    Engine,
    Launch,
    Run,
    run_rank,
    torchrun,
)


class Network(torch.nn.Module):
    """One weight, and a loss; records what it is given in training and in evaluation."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.weight, self.run = torch.nn.Parameter(torch.ones(1)), run

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        (self.run.trained if self.training else self.run.scored)({"ids": ids})
        return {"loss": (self.weight - ids.float() / 100).square().mean()}

    def __deepcopy__(self, memo: Any) -> Network:
        return self


def train(run: Run, loader: Any, model: torch.nn.Module, step: Any, save: Any) -> None:
    """Train chunk by chunk until the launch ends."""
    validation = run.make_validation()
    while not run.done:
        for batch in loader:
            step(model(batch["ids"])["loss"])
            if run.due is not None:
                save(run.due)
            if run.done:
                return
        model.eval()
        for batch in validation:
            model(batch["ids"])
        model.train()


def loop(run: Run, begin: Callable[[Any, Network], Callable[[Path], object]]) -> None:
    """Train in a plain loop.

    Args:
        run: The launch.
        begin: Loads the checkpoint to resume from, if any, into the loader and the network;
            returns the function that saves one.
    """
    network = Network(run)
    model = network if run.launch.world == 1 else DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        if run.batches % run.launch.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()

    with closing(run.make_loader()) as loader:
        train(run, loader, model, step, begin(loader, network))


def plain(run: Run) -> None:
    """A loop that saves the loader's state in the file of the model."""

    def begin(loader: Any, network: Network) -> Callable[[Path], object]:
        if run.launch.resume_from is not None:
            saved = torch.load(run.launch.resume_from, weights_only=True)
            network.load_state_dict(saved["model"])
            loader.load_state_dict(saved["loader"])

        def save(path: Path) -> None:
            if current_topology(None, None).rank == 0:
                torch.save({"model": network.state_dict(), "loader": loader.state_dict()}, path)

        return save

    loop(run, begin)


def checkpointed(run: Run) -> None:
    """A loop with ``torch.distributed.checkpoint``, as TorchTitan: the loader is one entry."""

    def begin(loader: Any, network: Network) -> Callable[[Path], object]:
        state = {"model": network.state_dict(), "loader": loader}
        if run.launch.resume_from is not None:
            load(state, checkpoint_id=run.launch.resume_from)
        return lambda path: save_shards(state, checkpoint_id=path)

    loop(run, begin)


def accelerated(run: Run) -> None:
    """A loop with accelerate's ``prepare``, ``save_state`` and ``load_state``."""
    accelerate, task = optional("accelerate", extra="dev"), run.launch
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=task.accumulate)
    network = Network(run)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(network, optimizer, run.make_loader())
    if task.resume_from is not None:
        accelerator.load_state(str(task.resume_from))

    def step(loss: torch.Tensor) -> None:
        with accelerator.accumulate(model):
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    train(run, loader, model, step, lambda path: accelerator.save_state(str(path)))
    loader.close()


def lightning(run: Run, *, alone: bool = False) -> None:
    """Lightning with `ChunkedTraining`, or alone."""
    pl = optional("lightning.pytorch", extra="lightning")
    from penstock.integrations.lightning import ChunkedTraining

    task = run.launch

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = Network(run)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.network(batch["ids"])

        def validation_step(self, batch: Any, _: int) -> None:
            self.network(batch["ids"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    saving = pl.callbacks.ModelCheckpoint(
        task.folder,
        "checkpoint-{step}",
        auto_insert_metric_name=False,
        every_n_train_steps=1,
        save_top_k=-1,
    )
    _quiet("lightning.pytorch", "lightning.fabric")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=task.world,
        strategy="ddp" if task.world > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        accumulate_grad_batches=task.accumulate,
        max_steps=task.until // task.accumulate,
        max_epochs=-1,
        callbacks=[*([] if alone else [ChunkedTraining()]), *([saving] if task.save_at else [])],
        # Lightning reads a length once, and without a length a batch at every reload
        reload_dataloaders_every_n_epochs=int(alone and task.chunk_size is not None),
        enable_checkpointing=bool(task.save_at),
    )
    resumed = task.resume_from and f"{task.resume_from}.ckpt"
    loaders = {"train_dataloaders": run.make_loader(), "val_dataloaders": run.make_validation()}
    trainer.fit(Module(), ckpt_path=resumed, **loaders)


def hugging_face(run: Run, *, alone: bool = False) -> None:
    """Hugging Face's ``Trainer`` with a `TrainerLoader`, or with the loader as it is."""
    transformers, task = optional("transformers", extra="dev"), run.launch
    _quiet("transformers")

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return run.make_loader() if alone else TrainerLoader(run.make_loader(), self)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return run.make_validation()

    settings = transformers.TrainingArguments(
        output_dir=str(task.folder),
        max_steps=task.until // task.accumulate,
        gradient_accumulation_steps=task.accumulate,
        save_strategy="steps" if task.save_at else "no",
        save_steps=1,
        eval_strategy="epoch",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(Network(run), settings, eval_dataset=[0])
    trainer.train(resume_from_checkpoint=task.resume_from and str(task.resume_from))


def ray_train(run: Run) -> None:
    """The loop of a worker of Ray Train."""
    train = optional("ray.train", extra="ray")

    def begin(loader: Any, network: Network) -> Callable[[Path], object]:
        training, resumed = RayTraining(loader), run.launch.resume_from
        if resumed is not None:
            with training.resume(train.Checkpoint.from_directory(resumed)):
                network.load_state_dict(torch.load(resumed / "model.pt", weights_only=True))
        run_folder = train.get_context().get_storage().experiment_fs_path
        return lambda path: training.report(
            {"batches": run.batches},
            lambda folder: torch.save(network.state_dict(), folder / "model.pt"),
            checkpoint_dir_name=str(path.relative_to(run_folder)),
        )

    loop(run, begin)


def start_ray(engine: Engine, tasks: Sequence[Launch]) -> None:
    """Run launches with one ``TorchTrainer``, which starts its workers again after a kill."""
    ray = optional("ray", extra="ray")
    from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    if not ray.is_initialized():
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

    kills = sum(task.killed_at is not None for task in tasks)
    top = Path(os.path.commonpath([task.folder for task in tasks]))
    trainer = TorchTrainer(
        lambda: run_rank(engine, tasks, get_context().get_world_rank()),
        torch_config=TorchConfig(backend="gloo", timeout_s=TIMEOUT_SECONDS),
        scaling_config=ScalingConfig(num_workers=tasks[0].world, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name=top.name,
            storage_path=str(top.parent),
            failure_config=FailureConfig(max_failures=kills),
        ),
    )
    with suppress(TrainingFailedError):  # the records show which launch failed
        trainer.fit()


def _quiet(*loggers: str) -> None:
    """Silence the warnings and log messages of other libraries."""
    warnings.filterwarnings("ignore")
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)


ENGINES: Final = {
    "plain": Engine("plain loop", plain),
    "torchrun": Engine("plain loop, torchrun", plain, start=torchrun("plain")),
    "dcp": Engine("torch.distributed.checkpoint", checkpointed),
    "lightning": Engine("Lightning", lightning, ("lightning",)),
    "lightning-alone": Engine(
        "Lightning, without the callback", partial(lightning, alone=True), ("lightning",)
    ),
    "accelerate": Engine("accelerate", accelerated, ("accelerate",)),
    "huggingface": Engine(
        "Hugging Face Trainer", hugging_face, ("transformers.trainer",), chunks=False
    ),
    "huggingface-alone": Engine(
        "Hugging Face Trainer, a loader as it is",
        partial(hugging_face, alone=True),
        ("transformers.trainer",),
        chunks=False,
    ),
    "ray": Engine("Ray Train", ray_train, ("ray",), start=start_ray),
}
