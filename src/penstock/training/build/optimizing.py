"""Optimizers and schedulers by the names S4 gives them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn, optim
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    MultiStepLR,
    ReduceLROnPlateau,
    StepLR,
)

from penstock.training.build.registries import optimizers, schedulers

optimizers.add("adam", optim.Adam)
optimizers.add("adamw", optim.AdamW)
optimizers.add("rmsprop", optim.RMSprop)
optimizers.add("sgd", optim.SGD)

schedulers.add("plateau", ReduceLROnPlateau)
schedulers.add("step", StepLR)
schedulers.add("multistep", MultiStepLR)
schedulers.add("cosine", CosineAnnealingLR)


def parameter_groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Parameters by the options they carry (S4's ``_optim``); those without any come first."""
    groups: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {(): []}
    for each in parameters:
        options = tuple(sorted(getattr(each, "_optim", {}).items()))
        groups.setdefault(options, []).append(each)
    return [{"params": found, **dict(options)} for options, found in groups.items() if found]


# -- schedules: objects of plain numbers, so that a checkpoint can hold them


@dataclass(frozen=True)
class Warmup:
    """A factor that grows to 1 in ``warmup`` steps, then stays."""

    warmup: int

    def __call__(self, step: int) -> float:
        """The factor at a step."""
        return step / self.warmup if step < self.warmup else 1.0


@dataclass(frozen=True)
class LinearDecay(Warmup):
    """Then falls to 0 in a line."""

    total: int

    def __call__(self, step: int) -> float:
        """The factor at a step."""
        if step < self.warmup:
            return super().__call__(step)
        return max(0.0, (self.total - step) / max(1, self.total - self.warmup))


@dataclass(frozen=True)
class CosineDecay(Warmup):
    """Then falls to 0 as a cosine, ``cycles`` times over."""

    total: int
    cycles: float

    def __call__(self, step: int) -> float:
        """The factor at a step."""
        if step < self.warmup:
            return super().__call__(step)
        done = (step - self.warmup) / max(1, self.total - self.warmup)
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * self.cycles * 2.0 * done)))


@schedulers.register("constant")
def constant(optimizer: optim.Optimizer) -> LambdaLR:
    """Always the same rate."""
    return LambdaLR(optimizer, Warmup(0))


@schedulers.register("constant_warmup")
def constant_warmup(optimizer: optim.Optimizer, num_warmup_steps: int) -> LambdaLR:
    """A rate that grows, then stays."""
    return LambdaLR(optimizer, Warmup(num_warmup_steps))


@schedulers.register("linear_warmup")
def linear_warmup(
    optimizer: optim.Optimizer, num_warmup_steps: int, num_training_steps: int
) -> LambdaLR:
    """A rate that grows, then falls in a line."""
    return LambdaLR(optimizer, LinearDecay(num_warmup_steps, num_training_steps))


@schedulers.register("cosine_warmup")
def cosine_warmup(
    optimizer: optim.Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
) -> LambdaLR:
    """A rate that grows, then falls as a cosine."""
    return LambdaLR(optimizer, CosineDecay(num_warmup_steps, num_training_steps, num_cycles))
