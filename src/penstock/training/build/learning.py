"""The module of a configuration: the user's own, or a task around a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.training.build import registries
from penstock.training.build.making import Maker
from penstock.training.build.module import TaskModule
from penstock.training.build.optimizing import parameter_groups
from penstock.training.build.passing import Chain
from penstock.training.build.scores import accuracy_among
from penstock.training.config import Settings

lightning = optional("lightning.pytorch", extra="lightning")

OF_DATA = ("d_input", "d_output", "l_output", "n_tokens", "n_classes")
OF_SCHEDULER = ("interval", "frequency", "monitor")  # keys for Lightning, not for the scheduler


log = logging.getLogger("penstock")


def make_module(settings: Settings, maker: Maker, data: Any) -> Any:
    """The LightningModule: what the section ``model`` makes, or a task around it."""
    if settings.model is None:
        raise ConfigError(f"{settings.path.name} names no model: give a section 'model'")
    section = {"_name_": settings.model} if isinstance(settings.model, str) else settings.model
    own = {name: value for name, value in section.items() if name not in ("encoder", "decoder")}
    takes_heads = "_target_" in section
    model = maker.make("model", section if takes_heads else own, registries.models)
    if isinstance(model, lightning.LightningModule):
        _say_unused(settings)
        return model
    _refuse_what_is_no_module(settings, model)
    heads = {} if takes_heads else section
    return Builder(settings, maker, data, model, sizes_of(data)).module(heads)


def _refuse_what_is_no_module(settings: Settings, model: Any) -> None:
    where = f"model ({settings.where('model')})"
    if any(each.__module__.startswith("pytorch_lightning") for each in type(model).__mro__):
        raise ConfigError(
            f"{where} is a module of pytorch_lightning, which the trainer does not take: import "
            "lightning.pytorch in its place"
        )
    if not isinstance(model, nn.Module):
        found = type(model).__name__
        raise ConfigError(f"{where} must be a torch or Lightning module, got {found}")


def _say_unused(settings: Settings) -> None:
    names = ("encoder", "decoder", "task", "optimizer", "scheduler")
    found = [name for name in names if getattr(settings, name) is not None]
    if found:
        log.info(
            "the model is a LightningModule, used as it is: %s have no effect", ", ".join(found)
        )


def sizes_of(data: Any) -> dict[str, Any]:
    """What the data tell about the width of their samples."""
    dataset = getattr(data, "dataset", data)
    while hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        dataset = dataset.dataset  # of a torch Subset
    found = {name: _size(dataset, name) for name in OF_DATA}
    return {name: value for name, value in found.items() if value is not None}


def _size(dataset: Any, name: str) -> Any:
    try:
        return getattr(dataset, name, None)
    except NotImplementedError:  # S4's way of saying that there is none
        return None


@dataclass(frozen=True, slots=True)
class Builder:
    """Joins a task, encoders and decoders to a model."""

    settings: Settings
    maker: Maker
    data: Any
    model: nn.Module
    sizes: Mapping[str, Any]

    def module(self, of_model: Mapping[str, Any]) -> TaskModule:
        """The module; ``of_model``: heads that the section of the model names."""
        settings = self.settings
        d_model = self._width("d_model")
        d_output = self._width("d_output") or d_model
        task = self._task(d_model)
        encoders = [*listed(settings.encoder), *listed(of_model.get("encoder"))]
        decoders = [*listed(of_model.get("decoder")), *listed(settings.decoder)]
        into = dict(self.sizes) | ({} if d_model is None else {"d_model": d_model})
        out = dict(self.sizes) | ({} if d_output is None else {"d_model": d_output})
        before = self._heads("encoder", encoders, registries.encoders, into)
        after = self._heads("decoder", decoders, registries.decoders, out)
        self._check_heads(task, before, after)
        module = TaskModule(
            self.model,
            task,
            Chain(task.encoder, *before),
            Chain(*after, task.decoder),
            self.optimize,
        )
        module.configure_optimizers()  # refuses what cannot be now, not when training begins
        return module

    def _width(self, name: str) -> Any:
        section = self.settings.model if isinstance(self.settings.model, Mapping) else {}
        found = getattr(self.model, name, None)
        return section.get(name) if found is None else found

    def _heads(
        self, key: str, sections: list[Any], registry: registries.Makers, given: Mapping[str, Any]
    ) -> list[nn.Module]:
        return [self.maker.make(key, section, registry, given=given) for section in sections]

    def _check_heads(self, task: Any, before: list[nn.Module], after: list[nn.Module]) -> None:
        """Refuse heads that do the task's own work a second time, and so get what is no token."""
        if task.encoder is not None and any(isinstance(each, nn.Embedding) for each in before):
            raise self.maker.refused(
                "encoder", "the task has an embedding of its own: leave the encoder out"
            )
        last = getattr(after[-1], "output", after[-1]) if after else None
        given, taken = (
            getattr(last, "out_features", None),
            getattr(task.decoder, "in_features", None),
        )
        if None not in (given, taken) and given != taken:
            raise self.maker.refused(
                "decoder",
                f"the task has a projection of its own, from a width of {taken} and not {given}: "
                "leave the decoder out",
            )

    # -- the task

    def _task(self, d_model: Any) -> Any:
        section = self.settings.task
        if section is None:
            raise ConfigError(
                f"{self.settings.path.name} has no task: give task.loss, or a model that is a "
                "LightningModule"
            )
        section = {"_name_": section} if isinstance(section, str) else dict(section)
        given = {**self.sizes, "dataset": self.data, "model": self.model, "d_model": d_model}
        if "_target_" in section:
            return self.maker.make("task", section, given=given)
        section.setdefault("_name_", "base")
        if section.get("torchmetrics") in (None, []):
            section.pop("torchmetrics", None)
        self._resolve_scores(section)
        return self.maker.make("task", section, registries.tasks, given=given)

    def _resolve_scores(self, section: dict[str, Any]) -> None:
        """Functions in the place of their names."""
        if section["_name_"] == "lm" and section.get("loss") is None:
            section["loss"] = "cross_entropy"
        for name in ("loss", "loss_val"):
            if section.get(name) is not None:
                section[name] = self._function(f"task.{name}", section[name], registries.losses)
            else:
                section.pop(name, None)
        names = listed(section.get("metrics"))
        section["metrics"] = {metric_name(each): self._metric(each) for each in names}

    def _metric(self, section: Any) -> Any:
        name, at, count = str(section).partition("@")
        if at and name == "accuracy" and count.isdigit():
            return partial(accuracy_among, count=int(count))
        return self._function("task.metrics", section, registries.metrics)

    def _function(self, key: str, section: Any, registry: registries.Makers) -> Any:
        options = {"_name_": section} if isinstance(section, str) else dict(section)
        if "_target_" in options:
            return self.maker.make(key, options | {"_partial_": True})
        return self.maker.function(key, options, registry)

    # -- the optimizer

    def optimize(self, module: nn.Module) -> Any:
        """The optimizer and scheduler, as Lightning takes them."""
        settings, groups = self.settings, parameter_groups(module.parameters())
        section = settings.optimizer or "adamw"
        if isinstance(section, Mapping) and section.get("_partial_"):
            section = {name: value for name, value in section.items() if name != "_partial_"}
        optimizer = self.maker.make("optimizer", section, registries.optimizers, groups)
        if settings.scheduler is None:
            return optimizer
        section = settings.scheduler
        section = {"_name_": section} if isinstance(section, str) else dict(section)
        said = {name: section.pop(name) for name in OF_SCHEDULER if name in section}
        section.pop("_partial_", None)
        made = self.maker.make("scheduler", section, registries.schedulers, optimizer)
        train = settings.train
        how = {"interval": train.interval, "monitor": train.monitor, "name": "trainer/lr"} | said
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": made, **how}}


def listed(section: Any) -> list[Any]:
    """None, one thing or several, as a list."""
    if section is None:
        return []
    return (
        [each for each in section if each is not None] if isinstance(section, list) else [section]
    )


def metric_name(section: Any) -> str:
    """What a metric is logged as."""
    return section if isinstance(section, str) else str(section.get("_name_", "metric"))
