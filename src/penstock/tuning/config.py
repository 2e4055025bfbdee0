"""The settings of a loader as one validated object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from penstock.arguments import choice, flag, function, whole_number
from penstock.errors import ConfigError
from penstock.loaders.options import EXECUTORS

_whole = partial(whole_number, error=ConfigError)
_flag = partial(flag, error=ConfigError)
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "batch_size": partial(_whole, minimum=1, unit="sample"),
    "num_workers": partial(_whole, minimum=0),
    "shuffle": _flag,
    "drop_last": _flag,
}
_CHECKS_UNLESS_NONE: dict[str, Callable[[str, Any], Any]] = {
    "prefetch_factor": partial(_whole, minimum=1, unit="batch"),
    "threads": partial(_whole, minimum=1),
    "seed": partial(_whole, minimum=0, maximum=(1 << 64) - 1),
    "pin_memory": _flag,
    "persistent_workers": _flag,
    "executor": partial(choice, allowed=EXECUTORS, error=ConfigError),
    "collate_fn": partial(function, error=ConfigError),
}


@dataclass(frozen=True)
class DataLoaderConfig:
    """Settings of a loader over any dataset.

    Args:
        batch_size: Number of samples in a batch of this rank.
        shuffle: Use a different random order in every epoch. False keeps the dataset's order.
        num_workers: Number of worker processes. Ignored by the other executors.
        pin_memory: Copy batches to pinned memory. None does so if there is an accelerator.
        prefetch_factor: Number of batches that each worker reads ahead. None uses torch's 2.
        persistent_workers: Keep workers between epochs. None does so if there are workers.
        drop_last: Drop the last batch of an epoch if it is incomplete.
        seed: Seed of the shuffle. None draws one at random and logs it.
        collate_fn: Makes a batch from a list of samples. None uses the collator of the task, or
            torch's default.
        executor: ``inline``, ``threads`` or ``processes``. None uses processes if there are
            workers.
        threads: Number of threads of the executor ``threads``. None uses one per core.

    Raises:
        ConfigError: A value is invalid, or ``executor="processes"`` without workers.

    >>> DataLoaderConfig(num_workers=0).options()["num_workers"]
    0
    """

    batch_size: int = 32
    shuffle: bool = True
    num_workers: int = 2
    pin_memory: bool | None = None
    prefetch_factor: int | None = 2
    persistent_workers: bool | None = None
    drop_last: bool = False
    seed: int | None = 42
    collate_fn: Callable[[list[Any]], Any] | None = None
    executor: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, check in (_CHECKS | _CHECKS_UNLESS_NONE).items():
            value = getattr(self, name)
            if value is not None or name in _CHECKS:
                object.__setattr__(self, name, check(name, value))
        if self.executor == "processes" and not self.num_workers:
            raise ConfigError("executor='processes' needs workers: pass num_workers=1 or more")

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of `ChunkedDataLoader`, without impossible combinations."""
        workers = self.num_workers if self.executor in (None, "processes") else 0
        accelerator = torch.accelerator.is_available()
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "num_workers": workers,
            "pin_memory": accelerator if self.pin_memory is None else self.pin_memory,
            "drop_last": self.drop_last,
            "seed": self.seed,
            "executor": self.executor,
            "threads": self.threads if self.executor == "threads" else None,
            "collate_fn": self.collate_fn,
        }
        if workers:
            options["prefetch_factor"] = self.prefetch_factor
            options["persistent_workers"] = self.persistent_workers is not False
        return options
