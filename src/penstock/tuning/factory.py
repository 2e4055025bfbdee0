"""Loaders configured for a dataset and a machine; the choice and its reason are logged."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import IterableDataset, TensorDataset

from penstock.arguments import (
    choice,
    flag,
    format_bytes,
    function,
    instance,
    parse_bytes,
    whole_number,
)
from penstock.collate import Collator, CollatorRegistry, TaskSpec
from penstock.errors import ConfigError
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.options import EXECUTORS, check_batch_size, check_dataset, check_torch_options
from penstock.loaders.pass_through import workers_for
from penstock.loaders.worker_errors import unpicklable_part
from penstock.loaders.workers import worker_init_fn
from penstock.tuning.cost import measure_cost
from penstock.tuning.machine import Machine, this_machine

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


log = logging.getLogger("penstock")

MAX_WORKERS = 16
SMALL, LARGE = 1000, 10_000  # samples
TORCH_PREFETCH = 2  # batches that a worker reads ahead by default
WORKER_OPTIONS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


class DataLoaderFactory:
    """Creates training and validation loaders that are configured for the machine.

    Arguments that the caller passes are never overridden. All methods work on the class and on an
    instance.

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
        """Return keyword arguments of a ``DataLoader``, chosen from the machine and the size.

        Costlier samples get more workers. ``prefetch_factor`` is absent without workers, and
        memory is pinned only if there is an accelerator.

        Args:
            dataset_size: Number of samples in the dataset.
            has_augmentation: Samples are augmented while they are read.
            has_standardization: Samples are standardized while they are read.
            machine: The machine to configure for. None means this one.
        """
        instance("machine", machine, Machine, optional=True, error=ConfigError)
        machine = machine or this_machine()
        dataset_size = whole_number("dataset_size", dataset_size, minimum=0, unit="sample")
        augments = flag("has_augmentation", has_augmentation)
        costly = flag("has_standardization", has_standardization) or augments
        workers = max(1, machine.cores * 3 // 8) if costly else machine.cores // 4
        if dataset_size < SMALL:
            workers = min(workers, 4)
        elif dataset_size > LARGE:
            workers += 2
        workers = max(0, min(workers, machine.cores - 1, MAX_WORKERS))
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
        """Return a shuffled, resumable loader that drops an incomplete last batch by default.

        Args:
            dataset: A map-style dataset, or an ``IterableDataset``.
            batch_size: Number of samples in a batch of this rank.
            **kwargs: ``has_augmentation`` and ``has_standardization`` are hints, as in
                `get_optimal_config`. ``memory_budget`` limits what workers read ahead (default: a
                quarter of the available memory). Everything else is passed to the loader.
        """
        return _create(dataset, batch_size, kwargs, {"shuffle": True})

    @staticmethod
    def create_validation_loader(dataset: Any, batch_size: int, **kwargs: Any) -> ChunkedDataLoader:
        """Return a loader in dataset order that drops nothing and always starts at the beginning.

        Args:
            dataset: A map-style dataset, or an ``IterableDataset``.
            batch_size: Number of samples in a batch of this rank.
            **kwargs: As for `create_training_loader`.
        """
        ours = {"shuffle": False, "drop_last": False, "evaluation": not kwargs.get("drop_last")}
        return _create(dataset, batch_size, {**kwargs, "has_augmentation": False}, ours)

    @staticmethod
    def create_dataloader(
        dataset: Any,
        config: DataLoaderConfig,
        task_spec: TaskSpec | None = None,
        tokenizer: Any = None,
        data_collator: Collator | None = None,
    ) -> ChunkedDataLoader:
        """Return the loader that a configuration describes.

        Samples are collated by ``data_collator``, or else the configuration's ``collate_fn``, or
        else the collator of the task, or else torch's default. Without a collator, a list of
        tensors of equal shape becomes a ``TensorDataset``, so that a batch has one element.

        Args:
            dataset: A map-style dataset, an ``IterableDataset``, or a list of tensors.
            config: The settings of the loader.
            task_spec: The task, which selects a collator from the registry.
            tokenizer: Passed to the collator of tasks on text.
            data_collator: Makes a batch from a list of samples.

        Raises:
            ConfigError: ``config`` is not a `DataLoaderConfig`, or the tensors of a list differ in
                shape or type.
        """
        check_dataset(dataset)
        advice = "pass DataLoaderConfig(batch_size=32), or DataLoaderConfig(**settings) for a dict"
        instance("config", config, DataLoaderConfig, advice=advice, error=ConfigError)
        instance("task_spec", task_spec, TaskSpec, optional=True, error=ConfigError)
        function("data_collator", data_collator, error=ConfigError)
        collate = data_collator or config.collate_fn
        if collate is None and task_spec is not None:
            registry = CollatorRegistry.get_instance()
            collate = registry.get_collator(task_spec, tokenizer=tokenizer)
        dataset = stack_tensors(dataset) if collate is None else dataset
        options = config.options() | {"collate_fn": collate}
        if isinstance(dataset, IterableDataset):  # cannot be shuffled: the default does not apply
            options["shuffle"] = None
            options["num_workers"] = workers_for(dataset, options["num_workers"])
        return build_loader(dataset, options, reason="as configured")


OptimalDataLoaderFactory = DataLoaderFactory


def _create(
    dataset: Any, batch_size: int, given: dict[str, Any], ours: dict[str, Any]
) -> ChunkedDataLoader:
    """Return a loader with the caller's options, ours where the caller passed none."""
    check_dataset(dataset)
    given, batch_size = {**given, **check_torch_options(given)}, check_batch_size(batch_size)
    hints = [given.pop(name, False) for name in ("has_augmentation", "has_standardization")]
    budget = given.pop("memory_budget", this_machine().memory_bytes // 4)
    size = len(dataset) if hasattr(dataset, "__len__") else SMALL
    chosen = DataLoaderFactory.get_optimal_config(size, *hints) | ours
    del chosen["persistent_workers"]  # depends on the final number of workers
    # a sampler of the caller decides the order: ours would contradict it
    excluded: tuple[str, ...] = ()  # options of ours that torch rejects with the caller's
    if given.get("batch_sampler") is not None:
        excluded = "shuffle", "evaluation", "drop_last"
    elif given.get("sampler") is not None or isinstance(dataset, IterableDataset):
        excluded = "shuffle", "evaluation"
    options = {"batch_size": batch_size, **chosen, **given}
    options = {k: v for k, v in options.items() if k in given or k not in excluded}
    if given.get("batch_sampler") is not None:
        options["batch_size"] = None
    reason = f"{this_machine().cores} cores"
    if isinstance(dataset, IterableDataset):
        options["num_workers"] = given.get("num_workers", 0)
        reason = "each worker would read all of an iterable dataset"
    elif given.get("executor") in ("inline", "threads"):
        options["num_workers"] = given.get("num_workers", 0)
    # a sampler may yield keys of any kind, so samples cannot be read to measure their cost
    if options["num_workers"] and not excluded:
        options, reason = _fit_workers(dataset, options, given, budget)
    return build_loader(dataset, options, reason)


def _fit_workers(
    dataset: Any, options: dict[str, Any], given: Mapping[str, Any], budget: int | str
) -> tuple[dict[str, Any], str]:
    """Return the options with workers that the samples are worth and memory allows, and why."""
    cost, cores = measure_cost(dataset), this_machine().cores
    reason = f"{cores} cores, {len(dataset):,} samples"
    if "num_workers" not in given:
        if cost.is_cheap:
            return options | {"num_workers": 0}, f"samples are {cost}: workers would only copy them"
        if cost.is_costly and cores > 1:
            options["num_workers"] = max(1, options["num_workers"])
        reason += f", each {cost}"
    allowed, batch_bytes = parse_bytes(budget, "memory_budget"), cost.nbytes * options["batch_size"]
    workers, ahead = options["num_workers"], options.get("prefetch_factor") or TORCH_PREFETCH
    needed = workers * ahead * batch_bytes
    if needed <= allowed:
        return options, reason
    problem = (
        f"{workers} workers with {ahead} batches ahead need {format_bytes(needed)}, more than "
        f"memory_budget={format_bytes(allowed)}"
    )
    if "prefetch_factor" in given:
        log.warning("%s: keeping prefetch_factor=%d as passed", problem, ahead)
        return options, reason
    if "num_workers" not in given:
        workers = min(workers, allowed // batch_bytes)
    ahead = max(1, allowed // (max(1, workers) * batch_bytes))
    log.warning("%s: using num_workers=%d, prefetch_factor=%d", problem, workers, ahead)
    return options | {"num_workers": workers, "prefetch_factor": ahead}, reason


def build_loader(dataset: Any, options: Mapping[str, Any], reason: str) -> ChunkedDataLoader:
    """Return the loader with these options; logs one line with the settings and the reason.

    Args:
        dataset: The dataset. If it cannot be sent to worker processes, none are used, with a
            warning that names the attribute at fault.
        options: Keyword arguments of `ChunkedDataLoader`.
        reason: Why these options were chosen.
    """
    options = dict(options)
    if options["num_workers"] and (problem := why_no_workers(dataset, options)) is not None:
        warnings.warn(f"{problem}; num_workers=0 is used", stacklevel=4)
        options["num_workers"], reason = 0, "the dataset cannot be sent to workers"
        if options.get("executor") == "processes":
            options["executor"] = None
    if options["num_workers"]:
        options["persistent_workers"] = options.get("persistent_workers") is not False
        options["worker_init_fn"] = options.get("worker_init_fn") or worker_init_fn
    else:
        options = {name: value for name, value in options.items() if name not in WORKER_OPTIONS}
    plain = {k: v for k, v in options.items() if isinstance(v, bool | int | float | str)}
    settings = ", ".join(f"{name}={value!r}" for name, value in plain.items())
    log.info("loader of %s: %s (%s)", type(dataset).__name__, settings, reason)
    return ChunkedDataLoader(dataset, **options)


def why_no_workers(dataset: Any, options: Mapping[str, Any]) -> str | None:
    """Return why a dataset or its functions cannot be sent to workers; None if they can."""
    functions = {name: options.get(name) for name in ("collate_fn", "worker_init_fn")}
    for name, part in {"dataset": dataset, **functions}.items():
        culprit = unpicklable_part(part, name)
        if culprit is not None:
            return f"{culprit} cannot be sent to a worker process: {culprit.fix}"
    return None


def stack_tensors(dataset: Any) -> Any:
    """Return a list of tensors as one ``TensorDataset``; anything else unchanged.

    Raises:
        ConfigError: The tensors differ in shape or type.
    """
    listed = isinstance(dataset, list | tuple) and dataset
    if not listed or not all(isinstance(sample, torch.Tensor) for sample in dataset):
        return dataset
    shapes = {(tuple(sample.shape), sample.dtype): i for i, sample in enumerate(dataset)}
    if len(shapes) > 1:
        (one, i), (other, j) = list(shapes.items())[:2]
        raise ConfigError(
            f"cannot stack tensors of different shape or type: sample {i} is {one[0]} {one[1]}, "
            f"sample {j} is {other[0]} {other[1]}; pass a data_collator that pads, or a task_spec"
        )
    return TensorDataset(torch.stack(list(dataset)))
