"""How a loader is configured: values, decided in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from penstock.arguments import choice, flag, function, whole_number
from penstock.errors import ConfigError
from penstock.loaders.options import EXECUTORS


@dataclass(frozen=True)
class DataLoaderConfig:
    """What a loader over any dataset is built with.

    Args:
        batch_size: Samples of this rank's batch.
        shuffle: Another order in every epoch; False for the dataset's own.
        num_workers: Worker processes; not used where the executor is another one.
        pin_memory: None: where there is an accelerator.
        prefetch_factor: Batches that each worker reads ahead; None for torch's 2.
        persistent_workers: None: where there are workers.
        drop_last: Drop the last batch of an epoch if it is not full.
        seed: For the shuffle; None draws one and logs it.
        collate_fn: None: torch's default, or what the task says.
        executor: ``inline``, ``threads`` or ``processes``; None: by the number of workers.
        threads: Of the executor ``threads``; None: as many as there are cores.

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
        whole = partial(whole_number, error=ConfigError)
        checks: dict[str, Callable[[str, Any], Any]] = {
            "batch_size": partial(whole, minimum=1, unit="sample"),
            "num_workers": partial(whole, minimum=0),
            "shuffle": partial(flag, error=ConfigError),
            "drop_last": partial(flag, error=ConfigError),
        }
        optional: dict[str, Callable[[str, Any], Any]] = {
            "prefetch_factor": partial(whole, minimum=1, unit="batch"),
            "threads": partial(whole, minimum=1),
            "seed": partial(whole, minimum=0, maximum=(1 << 64) - 1),
            "pin_memory": partial(flag, error=ConfigError),
            "persistent_workers": partial(flag, error=ConfigError),
            "executor": partial(choice, allowed=EXECUTORS, error=ConfigError),
            "collate_fn": partial(function, error=ConfigError),
        }
        for name, check in (checks | optional).items():
            value = getattr(self, name)
            if value is not None or name in checks:
                object.__setattr__(self, name, check(name, value))
        if self.executor == "processes" and not self.num_workers:
            raise ConfigError("executor='processes' needs workers, got num_workers=0: give some")

    def options(self) -> dict[str, Any]:
        """Arguments of a `ChunkedDataLoader`, less impossible combinations."""
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
