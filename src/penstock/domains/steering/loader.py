"""Loaders of steering datasets: shuffled for training, in fixed order for evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, Subset

from penstock.arguments import flag, instance, whole_number
from penstock.checks import BatchSchema
from penstock.distributed.agreement import agreed
from penstock.domains.steering.dataset import JASPERSteeringDataset
from penstock.domains.steering.layout import batch_schema
from penstock.errors import PlanError
from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.pass_through import first_of, first_of_torch, preserve_random_state
from penstock.loaders.torch_loader import RankSampler, TorchLoader
from penstock.order import Cursor, Plan, PlannedBatch


class SteeringLoader(ChunkedDataLoader):
    """A `ChunkedDataLoader` over a steering dataset, made by `create_loader`.

    ``force_steering`` and ``reload_negatives`` of its dataset take effect at the next batch, with
    any number of workers: batches that workers prepared before are discarded.

    Args:
        dataset: The dataset.
        batch_size: Samples per batch, on each rank.
        **options: Further arguments of `ChunkedDataLoader`.
    """

    dataset_obj: JASPERSteeringDataset
    sampler_obj: SteeringSampler | None = None

    def __init__(self, dataset: JASPERSteeringDataset, batch_size: int, **options: Any) -> None:
        super().__init__(dataset, batch_size, **options)
        self.dataset_obj = dataset
        self._served = dataset.served

    def _next(self, plan: Plan, iteration: int) -> tuple[Cursor, Any]:
        position = self.position
        if position.iteration == iteration:
            if not position.evaluation and position.cursor.epoch != self.dataset_obj.current_epoch:
                self.dataset_obj.set_epoch(position.cursor.epoch)  # as users read it from there
            forced, version, epoch = self.dataset_obj.served
            served = (forced, version, epoch if position.evaluation else 0)
            if served != self._served:  # what was read ahead is out of date
                self._drop_stream()
                self._served = served
        return super()._next(plan, iteration)

    def _batches(self, plan: Plan, cursor: Cursor) -> Iterator[PlannedBatch]:
        # evaluation uses epoch 0 of the order, but the dataset's own epoch of the curriculum
        batches = super()._batches(plan, cursor)
        if not self.position.evaluation:
            return batches
        epoch = self.dataset_obj.current_epoch
        return (replace(batch, epoch=epoch) for batch in batches)


class SteeringSampler(RankSampler):
    """The indices of this rank in a distributed loader; its `set_epoch` moves the loader."""

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; inside that epoch, do nothing."""
        self.position.set_epoch(epoch)


def create_loader(
    dataset_dir: str | PathLike[str],
    split: str,
    batch_size: int,
    num_workers: int = 0,
    distributed: bool = False,
    epoch: int = 0,
    drop_last: bool | None = None,
    pin_memory: bool = True,
    *,
    dataset: JASPERSteeringDataset | None = None,
    seed: int | None = None,
    **options: Any,
) -> SteeringLoader:
    """Return a loader of one split: shuffled for train; complete and in fixed order otherwise.

    A directory that is loaded already, and unchanged on disk, is not read again.

    Args:
        dataset_dir: Directory of the dataset.
        split: "train", "val" or "test".
        batch_size: Samples per batch, on each rank.
        num_workers: Worker processes; 0 reads in the calling process.
        distributed: Divide the batches between the ranks of ``torch.distributed``, without
            padding, and map the tables, so that the ranks of a machine share their memory. All
            ranks must call it, with the same data, seed and batch size. By default every process
            gets all batches.
        epoch: The epoch to start with.
        drop_last: Drop the incomplete last step of an epoch; None drops it for train only.
        pin_memory: Copy batches into pinned memory, where there is an accelerator.
        dataset: The dataset to use, so that no file is read.
        seed: Seed of shuffle and variants; None uses the directory's own.
        **options: Further arguments of `ChunkedDataLoader`.

    Raises:
        PlanError: An argument is invalid, or ``distributed`` is set without a process group.
    """
    batch_size = whole_number("batch_size", batch_size, minimum=1, unit="sample")
    num_workers = whole_number("num_workers", num_workers, minimum=0)
    epoch = whole_number("epoch", epoch, minimum=0)
    flag("distributed", distributed)
    flag("pin_memory", pin_memory)
    if drop_last is not None:
        flag("drop_last", drop_last)
    if distributed and not (dist.is_available() and dist.is_initialized()):
        raise PlanError(
            "distributed=True needs a process group: start the script with torchrun, and call "
            "torch.distributed.init_process_group() before create_loader"
        )

    def make() -> SteeringLoader:
        if dataset is None:
            mapped = True if distributed else None
            data = JASPERSteeringDataset(dataset_dir, split, epoch, use_mmap=mapped, seed=seed)
        else:
            data = _checked(dataset, dataset_dir, split)
            data.set_epoch(epoch)
        if num_workers and data.device.type != "cpu":
            raise PlanError(f"tables on {data.device} need num_workers=0, got {num_workers!r}")
        train = split == "train"
        drop = train if drop_last is None else drop_last
        defaults: dict[str, Any] = {"shuffle": train, "evaluation": not train}
        if not distributed:
            defaults |= {"rank": 0, "world_size": 1}
        if drop and not train:  # evaluation delivers all samples, so the last step is cut off here
            step = batch_size * (dist.get_world_size() if distributed else 1)
            defaults["limit_batches"] = len(data) // step
            if len(data) < step:
                raise PlanError(f"{len(data)} samples make no whole step of {step}")
        loader = SteeringLoader(
            data,
            batch_size,
            seed=data.seed if seed is None else seed,
            drop_last=drop,
            num_workers=num_workers,
            pin_memory=pin_memory and data.device.type == "cpu",
            **defaults | options,
        )
        if distributed:
            loader.sampler_obj = SteeringSampler(data, loader.position)
        loader.seek(epoch)
        return loader

    return agreed(make) if distributed else make()


def _checked(given: Any, dataset_dir: Any, split: str) -> JASPERSteeringDataset:
    instance("dataset", given, JASPERSteeringDataset)
    found: JASPERSteeringDataset = given
    if found.split != split or found.dataset_dir.resolve() != Path(dataset_dir).resolve():
        raise PlanError(
            f"the dataset given is the {found.split} split of {found.dataset_dir}, "
            f"not the {split} split of {dataset_dir}"
        )
    return found


def set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch of a loader's shuffle and of its dataset's curriculum, also in workers.

    A loader that was resumed inside that epoch keeps its position.

    Args:
        loader: A Penstock loader, or one of torch's with a sampler that has a ``set_epoch``.
        epoch: The epoch, counted from 0.
    """
    epoch = whole_number("epoch", epoch, minimum=0)
    if not hasattr(loader, "__iter__"):
        raise PlanError(f"loader must be a loader, got {loader!r}")
    moved = loader if isinstance(loader, Loader) else getattr(loader, "sampler", None)
    getattr(moved, "set_epoch", lambda _: None)(epoch)
    dataset = _steering_of(loader)
    if dataset is not None:
        dataset.set_epoch(epoch)


def validate_first_batch(loader: Iterable[Any], schema: BatchSchema | None = None) -> bool:
    """Return True if the first batch is valid; raise `BatchError` otherwise.

    The batch is read separately, in this process: the loader's position does not change, no random
    number is drawn and no worker starts.

    Args:
        loader: Any loader.
        schema: What to check; by default the schema of the loader's steering dataset.
    """
    if not hasattr(loader, "__iter__"):
        raise PlanError(f"loader must be a loader, got {loader!r}")
    if schema is None:
        dataset = _steering_of(loader)
        schema = batch_schema() if dataset is None else dataset.schema()
    schema.check(first_batch(loader))
    return True


def first_batch(loader: Iterable[Any]) -> Any:
    """Return the first batch of a loader without changing its position or random state.

    Args:
        loader: A loader of Penstock or of torch, or any iterable of batches.
    """
    if isinstance(loader, TorchLoader):
        return loader.peek()
    if isinstance(loader, DataLoader):
        return first_of_torch(loader)
    with preserve_random_state():
        return first_of(loader)


def _steering_of(loader: Any) -> JASPERSteeringDataset | None:
    dataset = getattr(loader, "dataset", None)
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset if isinstance(dataset, JASPERSteeringDataset) else None
