"""The right loader for a dataset and a machine, with a reason."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.gather import gather_of
from penstock.loaders.machine import Machine, this_machine
from penstock.loaders.peeking import undisturbed
from penstock.loaders.pickling import unpicklable_part
from penstock.loaders.worker_init import worker_init_fn

log = logging.getLogger("penstock")

MOST_WORKERS = 16
SMALL, LARGE = 1000, 10_000  # samples
CHEAP_SECONDS = 50e-6  # a sample below this costs less than sending it between processes


class DataLoaderFactory:
    """Training and validation loaders, configured for the machine; a caller's arguments win.

    All methods work on the class and on an instance.

    >>> machine = Machine(cores=32, accelerator=True)
    >>> config = DataLoaderFactory.get_optimal_config(500, has_augmentation=True, machine=machine)
    >>> config["num_workers"], config["pin_memory"]
    (4, True)
    """

    @staticmethod
    def get_optimal_config(
        dataset_size: int,
        has_augmentation: bool = False,
        has_standardization: bool = False,
        *,
        machine: Machine | None = None,
    ) -> dict[str, Any]:
        """Keywords of a ``DataLoader`` for a dataset of that size, from the machine alone.

        Costlier samples get more workers. ``prefetch_factor`` is absent without workers, and
        nothing is pinned without an accelerator.
        """
        machine = machine or this_machine()
        costly = has_augmentation or has_standardization
        workers = machine.cores * 3 // 8 if costly else machine.cores // 4
        if dataset_size < SMALL:
            workers = min(workers, 4)
        elif dataset_size > LARGE:
            workers = min(workers + 2, machine.cores - 1)
        workers = max(0, min(workers, MOST_WORKERS))
        config: dict[str, Any] = {
            "num_workers": workers,
            "pin_memory": machine.accelerator,
            "persistent_workers": workers > 0,
            "drop_last": True,
        }
        if workers:
            config["prefetch_factor"] = 4 if costly else 2
        return config

    @staticmethod
    def create_training_loader(dataset: Any, batch_size: int, **kwargs: Any) -> ChunkedDataLoader:
        """A shuffled, resumable loader; ``has_augmentation``, ``has_standardization`` are hints."""
        return _create(dataset, batch_size, kwargs, {"shuffle": True})

    @staticmethod
    def create_validation_loader(dataset: Any, batch_size: int, **kwargs: Any) -> ChunkedDataLoader:
        """A loader in order that drops nothing and always begins at the beginning."""
        fixed = {"evaluation": True, "shuffle": False, "drop_last": False}
        return _create(dataset, batch_size, {**kwargs, "has_augmentation": False}, fixed)


OptimalDataLoaderFactory = DataLoaderFactory


@dataclass(frozen=True, slots=True)
class SampleCost:
    """What one sample costs to read, measured on a few."""

    seconds: float
    gathered: bool

    @property
    def is_cheap(self) -> bool:
        """Is it cheaper read here than sent from a worker?"""
        return self.gathered or self.seconds < CHEAP_SECONDS

    def __str__(self) -> str:
        return "gathered in one go" if self.gathered else f"read in {self.seconds * 1e6:.0f} us"


def measure_cost(dataset: Any, *, samples: int = 4) -> SampleCost:
    """Read a few samples, leaving ambient generators as they were."""
    gathered = gather_of(dataset) is not None
    count = min(samples, len(dataset))
    if gathered or not count:
        return SampleCost(0.0, gathered)
    with undisturbed():
        dataset[0]  # files open, caches warm
        begin = perf_counter()
        for i in range(count):
            dataset[i * (len(dataset) - 1) // max(1, count - 1)]
        return SampleCost((perf_counter() - begin) / count, gathered)


def _create(
    dataset: Any, batch_size: int, given: dict[str, Any], fixed: dict[str, Any]
) -> ChunkedDataLoader:
    given = dict(given)
    augments = bool(given.pop("has_augmentation", False))
    standardizes = bool(given.pop("has_standardization", False))
    config = DataLoaderFactory.get_optimal_config(len(dataset), augments, standardizes) | fixed
    reason = f"{this_machine().cores} cores, {len(dataset):,} samples"
    if "num_workers" not in given and config["num_workers"]:
        cost = measure_cost(dataset)
        if cost.is_cheap:
            config["num_workers"] = 0
            reason = f"samples are {cost}: workers would only copy them"
    config |= given
    if config["num_workers"] and (unfit := unfit_for_workers(dataset, config)) is not None:
        warnings.warn(unfit, stacklevel=3)
        config["num_workers"], reason = 0, "the dataset cannot go to workers"
    _mend(config)
    shown = ", ".join(f"{name}={value!r}" for name, value in config.items() if not callable(value))
    log.info("loader of %s: %s (%s)", type(dataset).__name__, shown, reason)
    return ChunkedDataLoader(dataset, batch_size, **config)


def unfit_for_workers(dataset: Any, config: dict[str, Any]) -> str | None:
    """Why a dataset, or what works on it, cannot go to worker processes; None where it can."""
    parts = {"dataset": dataset, "collate_fn": config.get("collate_fn")}
    for name, part in parts.items():
        culprit = unpicklable_part(part, name)
        if culprit is not None:
            return (
                f"{culprit} cannot be sent to a worker process, so num_workers=0 is used: define "
                "it at the top of a module, and open files and handles where they are read"
            )
    return None


def _mend(config: dict[str, Any]) -> None:
    """No workers: nothing that only workers have. Workers: seeds of their own for ambient draws."""
    if config["num_workers"]:
        config.setdefault("worker_init_fn", worker_init_fn)
        return
    for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
        config.pop(name, None)
