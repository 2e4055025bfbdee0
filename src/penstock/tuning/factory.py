"""The right loader for a dataset and a machine, with a reason."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from penstock.arguments import flag, function, instance, whole_number
from penstock.collate import Collator, CollatorRegistry, TaskSpec
from penstock.errors import ConfigError
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.machine import Machine, this_machine
from penstock.loaders.options import check_dataset, check_torchs
from penstock.loaders.position import check_batch_size
from penstock.loaders.sharding import workers_for
from penstock.tuning.config import DataLoaderConfig
from penstock.tuning.fitting import build, fit, stacked

MOST_WORKERS = 16
SMALL, LARGE = 1000, 10_000  # samples


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

        Args:
            dataset_size: Samples of the dataset.
            has_augmentation: Samples are augmented as they are read.
            has_standardization: Samples are standardized as they are read.
            machine: None for this one.
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
        workers = max(0, min(workers, machine.cores - 1, MOST_WORKERS))
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
        """A shuffled, resumable loader that drops the short last batch by default.

        Args:
            dataset: Map-style, or an ``IterableDataset``.
            batch_size: Samples of this rank's batch.
            **kwargs: ``has_augmentation`` and ``has_standardization`` are hints; ``memory_budget``
                bounds what workers read ahead (a quarter of the memory there is); all else goes to
                the loader.
        """
        return _create(dataset, batch_size, kwargs, {"shuffle": True})

    @staticmethod
    def create_validation_loader(dataset: Any, batch_size: int, **kwargs: Any) -> ChunkedDataLoader:
        """A loader in order that drops nothing and always begins at the beginning.

        Args:
            dataset: Map-style, or an ``IterableDataset``.
            batch_size: Samples of this rank's batch.
            **kwargs: As of `create_training_loader`.
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
        """The loader a configuration describes.

        Samples are collated by ``data_collator``, else the configuration's ``collate_fn``, else
        what the task asks for, else torch's default. A list of equal tensors becomes one tensor
        (a batch of it has one element), unless a collator takes them as they are.

        Args:
            dataset: Map-style, an ``IterableDataset``, or a list of tensors.
            config: The settings of the loader.
            task_spec: What the samples are for.
            tokenizer: For tasks on text.
            data_collator: Makes a batch of a list of samples.
        """
        check_dataset(dataset)
        if not isinstance(config, DataLoaderConfig):
            raise ConfigError(
                f"config must be a DataLoaderConfig, got {type(config).__name__}: "
                "pass DataLoaderConfig(batch_size=32, ...)"
            )
        instance("task_spec", task_spec, TaskSpec, optional=True, error=ConfigError)
        function("data_collator", data_collator, error=ConfigError)
        collate = data_collator or config.collate_fn
        if collate is None and task_spec is not None:
            registry = CollatorRegistry.get_instance()
            collate = registry.get_collator(task_spec, tokenizer=tokenizer)
        dataset = stacked(dataset) if collate is None else dataset
        options = config.options() | {"collate_fn": collate}
        if isinstance(dataset, IterableDataset):  # its order is its own: the default cannot apply
            options["shuffle"] = None
            options["num_workers"] = workers_for(dataset, options["num_workers"])
        return build(dataset, options, why="as configured")


OptimalDataLoaderFactory = DataLoaderFactory


def _create(
    dataset: Any, batch_size: int, given: dict[str, Any], ours: dict[str, Any]
) -> ChunkedDataLoader:
    check_dataset(dataset)
    given, batch_size = {**given, **check_torchs(given)}, check_batch_size(batch_size)
    hints = [given.pop(name, False) for name in ("has_augmentation", "has_standardization")]
    budget = given.pop("memory_budget", this_machine().memory_bytes // 4)
    size = len(dataset) if hasattr(dataset, "__len__") else SMALL
    chosen = DataLoaderFactory.get_optimal_config(size, *hints) | ours
    del chosen["persistent_workers"]  # follows the workers there will be
    config, why = fit(dataset, batch_size, chosen, given, budget)
    batches = None if given.get("batch_sampler") is not None else batch_size
    return build(dataset, {"batch_size": batches, **config}, why)
