"""The module of a configuration: the user's own, or a task around a model; and its optimizer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LambdaLR

from penstock.errors import BatchError, ConfigError
from penstock.extras import optional
from penstock.training.build import registries
from penstock.training.build.objects import Maker, as_list, as_section
from penstock.training.build.registries import (
    Task,
    accepted,
    accuracy_among,
    optimizers,
    schedulers,
)
from penstock.training.config import Settings

lightning = optional("lightning.pytorch", extra="lightning")

HEADS = ("encoder", "decoder")
OF_DATA = ("d_input", "d_output", "l_output", "n_tokens", "n_classes")
OF_SCHEDULER = ("interval", "frequency", "monitor")  # keys for Lightning, not for the scheduler


log = logging.getLogger("penstock")


def make_module(settings: Settings, maker: Maker, data: Any) -> Any:
    """Return the LightningModule: the user's own, or a task around the section ``model``."""
    if settings.model is None:
        raise ConfigError(f"{settings.path.name} names no model: add a section 'model'")
    section = as_section(settings.model)
    heads = {} if "_target_" in section else {n: section.pop(n, None) for n in HEADS}
    model = maker.make("model", section, registries.models)
    if isinstance(model, lightning.LightningModule):
        unused = (*HEADS, "task", "optimizer", "scheduler")
        found = [name for name in unused if getattr(settings, name) is not None]
        if found:
            log.info("the model is a LightningModule: %s have no effect", ", ".join(found))
        return model
    if any(each.__module__.startswith("pytorch_lightning") for each in type(model).__mro__):
        why = "is of pytorch_lightning: import lightning.pytorch instead"
        raise settings.refused("model", why)
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise settings.refused("model", f"must be a torch or Lightning module, got {kind}")
    sizes = sizes_of(data)
    d_model, d_output = (
        section.get(name) if getattr(model, name, None) is None else getattr(model, name)
        for name in ("d_model", "d_output")
    )
    given = {**sizes, "dataset": data, "model": model, "d_model": d_model}
    task = make_task(settings, maker, given)
    widths = d_model, d_output or d_model
    into, out = (sizes if each is None else sizes | {"d_model": each} for each in widths)
    encoders = [*as_list(settings.encoder), *as_list(heads.get("encoder"))]
    decoders = [*as_list(heads.get("decoder")), *as_list(settings.decoder)]
    make = maker.make
    before = [make("encoder", each, registries.encoders, given=into) for each in encoders]
    after = [make("decoder", each, registries.decoders, given=out) for each in decoders]
    check_heads(maker, task, before, after)
    encoder, decoder = Chain(task.encoder, *before), Chain(*after, task.decoder)
    module = TaskModule(model, task, encoder, decoder, partial(optimize, settings, maker))
    module.configure_optimizers()  # report an invalid optimizer now, not when training begins
    return module


def sizes_of(data: Any) -> dict[str, Any]:
    """Return the sizes that the data define (``d_input``, ``n_tokens``, ...)."""
    dataset = getattr(data, "dataset", data)
    while hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        dataset = dataset.dataset  # of a torch Subset
    found = {}
    for name in OF_DATA:
        with suppress(NotImplementedError):  # how S4 marks a size that a dataset does not have
            found[name] = getattr(dataset, name, None)
    return {name: value for name, value in found.items() if value is not None}


def check_heads(maker: Maker, task: Any, before: list[nn.Module], after: list[nn.Module]) -> None:
    """Refuse an encoder or decoder that repeats the task's own."""
    if task.encoder is not None and any(isinstance(each, nn.Embedding) for each in before):
        why = "the task has an embedding of its own: leave the encoder out"
        raise maker.settings.refused("encoder", why)
    last = getattr(after[-1], "output", after[-1]) if after else None
    given = getattr(last, "out_features", None)
    taken = getattr(task.decoder, "in_features", None)
    if None not in (given, taken) and given != taken:
        why = f"the task has a projection of its own, from a width of {taken} and not {given}"
        raise maker.settings.refused("decoder", f"{why}: leave the decoder out")


def make_task(settings: Settings, maker: Maker, given: Mapping[str, Any]) -> Any:
    """Return the task, with names of losses and metrics replaced by functions."""
    if settings.task is None:
        name = settings.path.name
        raise ConfigError(f"{name} has no task: set task.loss, or train a LightningModule")
    section = as_section(settings.task)
    if "_target_" in section:
        return maker.make("task", section, given=given)
    if section.setdefault("_name_", "base") == "lm" and section.get("loss") is None:
        section["loss"] = "cross_entropy"
    if section.get("torchmetrics") in (None, []):
        section.pop("torchmetrics", None)

    def function(key: str, found: Any, registry: registries.Factories) -> Any:
        return maker.make(f"task.{key}", as_section(found) | {"_partial_": True}, registry)

    def metric(found: Any) -> Any:
        name, at, count = str(found).partition("@")
        if at and name == "accuracy" and count.isdigit():
            return partial(accuracy_among, count=int(count))
        return function("metrics", found, registries.metrics)

    for name in ("loss", "loss_val"):
        if (found := section.pop(name, None)) is not None:
            section[name] = function(name, found, registries.losses)
    section["metrics"] = {
        each if isinstance(each, str) else str(each.get("_name_", "metric")): metric(each)
        for each in as_list(section.get("metrics"))
    }
    return maker.make("task", section, registries.tasks, given=given)


def optimize(settings: Settings, maker: Maker, module: nn.Module) -> Any:
    """Return the optimizer and scheduler of a module for ``configure_optimizers``."""
    section = as_section(settings.optimizer or "adamw")
    groups = parameter_groups(module.parameters())
    section.pop("_partial_", None)
    optimizer = maker.make("optimizer", section, registries.optimizers, groups)
    if settings.scheduler is None:
        return optimizer
    section = as_section(settings.scheduler)
    section.pop("_partial_", None)
    how = {"interval": settings.train.interval, "monitor": settings.train.monitor}
    how |= {"name": "trainer/lr"} | {n: section.pop(n) for n in OF_SCHEDULER if n in section}
    made = maker.make("scheduler", section, registries.schedulers, optimizer)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": made, **how}}


# the names that S4 configurations use
for kind in (optim.Adam, optim.AdamW, optim.RMSprop, optim.SGD):
    optimizers.add(kind.__name__.lower(), kind)
schedulers.add("plateau", lr_scheduler.ReduceLROnPlateau)
schedulers.add("step", lr_scheduler.StepLR)
schedulers.add("multistep", lr_scheduler.MultiStepLR)
schedulers.add("cosine", lr_scheduler.CosineAnnealingLR)


def parameter_groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Group parameters by their own options (S4's ``_optim``); those without any come first."""
    groups: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {(): []}
    for each in parameters:
        options = tuple(sorted(getattr(each, "_optim", {}).items()))
        groups.setdefault(options, []).append(each)
    return [{"params": found, **dict(options)} for options, found in groups.items() if found]


# -- schedules: objects with plain numbers, so that checkpoints can store them


@dataclass(frozen=True)
class Schedule:
    """A factor that rises to 1, then stays, or falls to 0 linearly or as a cosine.

    Args:
        warmup: Steps in which it rises.
        total: The step at which it is 0; None to stay.
        cycles: Periods of a cosine after the warm-up; None for a line.
    """

    warmup: int = 0
    total: int | None = None
    cycles: float | None = None

    def __call__(self, step: int) -> float:
        """Return the factor at a step."""
        if step < self.warmup or self.total is None:
            return step / self.warmup if step < self.warmup else 1.0
        length = max(1, self.total - self.warmup)
        if self.cycles is None:
            return max(0.0, (self.total - step) / length)
        done = (step - self.warmup) / length
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * self.cycles * 2.0 * done)))


@schedulers.register("constant")
def constant(optimizer: optim.Optimizer) -> LambdaLR:
    """Return a constant schedule."""
    return LambdaLR(optimizer, Schedule())


@schedulers.register("constant_warmup")
def constant_warmup(optimizer: optim.Optimizer, num_warmup_steps: int) -> LambdaLR:
    """Return a schedule that rises, then stays."""
    return LambdaLR(optimizer, Schedule(num_warmup_steps))


@schedulers.register("linear_warmup")
def linear_warmup(
    optimizer: optim.Optimizer, num_warmup_steps: int, num_training_steps: int
) -> LambdaLR:
    """Return a schedule that rises, then falls linearly."""
    return LambdaLR(optimizer, Schedule(num_warmup_steps, num_training_steps))


@schedulers.register("cosine_warmup")
def cosine_warmup(
    optimizer: optim.Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
) -> LambdaLR:
    """Return a schedule that rises, then falls as a cosine."""
    return LambdaLR(optimizer, Schedule(num_warmup_steps, num_training_steps, num_cycles))


class Chain(nn.Module):
    """Modules in sequence; each receives the extras that it takes by name.

    A module returns a tensor, or a tuple whose second item may be a dict of further extras.
    """

    def __init__(self, *modules: nn.Module | None) -> None:
        super().__init__()
        self.steps = nn.ModuleList(each for each in modules if each is not None)

    def forward(self, x: Any, **extras: Any) -> tuple[Any, dict[str, Any]]:
        """Return the output of the last module, and all extras."""
        for step in self.steps:
            found = step(x, **accepted(step.forward, extras))
            if isinstance(found, tuple):
                further = found[1] if len(found) > 1 and isinstance(found[1], dict) else {}
                found, extras = found[0], extras | further
            x = found
        return x, extras


class TaskModule(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A LightningModule that trains a model on a task.

    Batches are ``(x, y)``, ``(x, y, dict)`` or a dict with ``x`` and ``y``; further entries of the
    dict (``lengths``, ``rate``) are passed by name to every module and loss that takes them. Scores
    are logged as ``train/loss``, ``val/accuracy``, ``test/...``; those of a second validation
    loader as ``val/1/loss``, or by its name.

    Args:
        model: ``model(x)`` returns outputs, or a tuple of outputs and a state.
        task: The loss and metrics, and perhaps an encoder and decoder of its own.
        encoder: Runs before the model, after the task's encoder.
        decoder: Runs after the model, before the task's decoder; may take the ``state``.
        optimize: Returns what ``configure_optimizers`` returns, for this module.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        encoder: Chain,
        decoder: Chain,
        optimize: Callable[[nn.Module], Any],
    ) -> None:
        super().__init__()
        self.encoder, self.model, self.decoder = encoder, model, decoder
        self.loss, self.loss_val = task.loss, task.loss_val  # attributes: losses may have weights
        self._task, self._optimize = task, optimize

    def forward(self, x: Any, **extras: Any) -> Any:
        """Return the decoder's output."""
        x, extras = self.encoder(x, **extras)
        found = self.model(x, **accepted(self.model.forward, extras))
        if isinstance(found, tuple):
            x, extras = found[0], extras | {"state": found[1] if len(found) > 1 else None}
        else:
            x = found
        return self.decoder(x, **extras)[0]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch, and log its scores."""
        return self._log_scores(batch, "train", self.loss)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log the scores of a batch."""
        self._log_scores(batch, self._prefix("val", dataloader_idx), self.loss_val)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log the scores of a batch."""
        self._log_scores(batch, self._prefix("test", dataloader_idx), self.loss_val)

    def configure_optimizers(self) -> Any:
        """Return the optimizer and scheduler of the configuration."""
        return self._optimize(self)

    def _log_scores(self, batch: Any, prefix: str, loss_of: Callable[..., Tensor]) -> Tensor:
        x, y, extras = parts_of(batch)
        outputs = self(x, **extras)
        loss = loss_of(outputs, y, **accepted(loss_of, extras))
        scores = self._task.scores(outputs.detach(), y, loss.detach(), extras)
        training = prefix == "train"
        for values, prog_bar in (({"loss": loss}, True), (scores, False)):
            self.log_dict(
                {f"{prefix}/{name}": value for name, value in values.items()},
                on_step=training,
                on_epoch=not training,
                prog_bar=prog_bar,
                batch_size=len(y),
                sync_dist=not training,
                add_dataloader_idx=False,
            )
        return loss

    def _prefix(self, part: str, number: int) -> str:
        loaders = getattr(self.trainer, f"{part}_dataloaders", None)
        if isinstance(loaders, Mapping):
            name = list(loaders)[number]
            return part if name is None else f"{part}/{name}"
        return f"{part}/{number}" if number else part


def parts_of(batch: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return x, y, and the further entries of a batch by name.

    >>> parts_of((1, 2, {"lengths": 3}))
    (1, 2, {'lengths': 3})
    >>> parts_of({"x": 1, "y": 2, "rate": 4})
    (1, 2, {'rate': 4})
    """
    if isinstance(batch, Mapping) and "x" in batch and "y" in batch:
        return batch["x"], batch["y"], {n: v for n, v in batch.items() if n not in ("x", "y")}
    if isinstance(batch, tuple | list) and len(batch) in (2, 3):
        x, y, *further = batch
        if all(isinstance(each, Mapping) for each in further):
            return x, y, dict(further[0]) if further else {}
    found = f"a dict of {sorted(batch)}" if isinstance(batch, Mapping) else type(batch).__name__
    raise BatchError(
        f"a task needs batches (x, y), (x, y, dict) or a dict with x and y, got {found}: make the "
        "dataset return these, or train your own LightningModule"
    )
