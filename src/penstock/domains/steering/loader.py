"""Loaders of steering datasets: training by the curriculum, evaluation in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, Subset

from penstock.arguments import flag, instance, whole_number
from penstock.checks import BatchSchema
from penstock.distributed.agreement import agreed
from penstock.domains.steering import JASPERSteeringDataset
from penstock.domains.steering.schema import batch_schema
from penstock.errors import PlanError
from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.pass_through import first_of, first_of_torch, preserve_random_state
from penstock.loaders.position import Position
from penstock.loaders.sampler import RankSampler
from penstock.loaders.torch_loader import TorchLoader
from penstock.order import Cursor, Plan, PlannedBatch


class SteeringLoader(ChunkedDataLoader):
    """A `ChunkedDataLoader` over a steering dataset: what `create_loader` gives.

    ``force_steering`` and ``reload_negatives`` of its dataset count from the very next batch, with
    any number of workers: what they had read ahead is discarded.
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
                self.dataset_obj.set_epoch(position.cursor.epoch)  # it tells what is delivered
            self._drop_what_changed(evaluation=position.evaluation)
        return super()._next(plan, iteration)

    def _drop_what_changed(self, *, evaluation: bool) -> None:
        forced, edition, epoch = self.dataset_obj.served
        served = (forced, edition, epoch if evaluation else 0)
        if served != self._served:
            self._drop_stream()
            self._served = served

    def _batches(self, plan: Plan, cursor: Cursor) -> Iterator[PlannedBatch]:
        """Evaluation is always epoch 0 of the order, but of the curriculum the dataset's own."""
        batches = super()._batches(plan, cursor)
        if not self.position.evaluation:
            return batches
        epoch = self.dataset_obj.current_epoch
        return (replace(batch, epoch=epoch) for batch in batches)


class SteeringSampler(RankSampler):
    """This rank's share of a distributed loader; its `set_epoch` moves the loader."""

    def __init__(self, dataset: Any, course: Position) -> None:
        super().__init__(dataset, course)
        self._moved = course

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; inside it already, nothing happens."""
        self._moved.set_epoch(epoch)


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
    """A loader of one split: shuffled for train, in a fixed order and complete for val and test.

    A directory that is loaded already, and unchanged on disk, is not read again; nor is anything
    read where a ``dataset`` is given. ``distributed`` shares the batches out to the ranks of
    ``torch.distributed``, none padded, and maps the tables, so that the ranks of a machine hold
    them once; all ranks must call it, and are all refused where their data, seed or batch size
    differ. Without it every process sees all. ``drop_last`` is None for train only. ``seed``,
    of shuffle and variants, is the directory's own by default. Further options are those of
    `ChunkedDataLoader`.
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
    make = partial(
        _create,
        *(dataset_dir, split, batch_size, num_workers, distributed, epoch, drop_last, pin_memory),
        dataset=dataset,
        seed=seed,
        **options,
    )
    return agreed(make) if distributed else make()


def _create(
    dataset_dir: str | PathLike[str],
    split: str,
    batch_size: int,
    num_workers: int,
    distributed: bool,
    epoch: int,
    drop_last: bool | None,
    pin_memory: bool,
    *,
    dataset: JASPERSteeringDataset | None,
    seed: int | None,
    **options: Any,
) -> SteeringLoader:
    if dataset is None:
        mapped = True if distributed else None
        dataset = JASPERSteeringDataset(dataset_dir, split, epoch, use_mmap=mapped, seed=seed)
    else:
        _check_given(dataset, dataset_dir, split)
        dataset.set_epoch(epoch)
    if num_workers and dataset.device.type != "cpu":
        raise PlanError(f"tables on {dataset.device} need num_workers=0, got {num_workers!r}")
    if not distributed:
        options = {"rank": 0, "world_size": 1} | options
    train = split == "train"
    drop_last = train if drop_last is None else drop_last
    if drop_last and not train:  # as fixed as with all of them, less the incomplete last step
        options.setdefault("limit_batches", _whole_batches(len(dataset), batch_size, distributed))
    loader = SteeringLoader(
        dataset,
        batch_size,
        seed=dataset.seed if seed is None else seed,
        drop_last=drop_last,
        num_workers=num_workers,
        pin_memory=pin_memory and dataset.device.type == "cpu",
        **{"shuffle": train, "evaluation": not train} | options,
    )
    if distributed:
        loader.sampler_obj = SteeringSampler(dataset, loader.position)
    loader.seek(epoch)
    return loader


def _whole_batches(samples: int, batch_size: int, distributed: bool) -> int:
    step = batch_size * (dist.get_world_size() if distributed else 1)
    if samples < step:
        raise PlanError(
            f"{samples} samples make no whole step of {step}: use a smaller batch size, or "
            "drop_last=False"
        )
    return samples // step


def _check_given(
    dataset: JASPERSteeringDataset, dataset_dir: str | PathLike[str], split: str
) -> None:
    instance("dataset", dataset, JASPERSteeringDataset)
    if dataset.split != split or dataset.dataset_dir.resolve() != Path(dataset_dir).resolve():
        raise PlanError(
            f"the dataset given is the {dataset.split} split of {dataset.dataset_dir}, "
            f"not the {split} split of {dataset_dir}"
        )


def set_epoch(loader: Any, epoch: int) -> None:
    """Move a loader's shuffle and its dataset's curriculum to an epoch, workers included.

    Inside that epoch already, a resumed loader stays where it is.

    Args:
        loader: A Penstock loader, or one of torch's with a sampler that has a ``set_epoch``.
        epoch: The epoch, counted from 0.
    """
    epoch = whole_number("epoch", epoch, minimum=0)
    if not hasattr(loader, "__iter__"):
        raise PlanError(f"loader must be a loader, got {loader!r}")
    if isinstance(loader, Loader):
        loader.set_epoch(epoch)
    else:
        move = getattr(getattr(loader, "sampler", None), "set_epoch", None)
        if move is not None:
            move(epoch)
    dataset = _steering_of(loader)
    if dataset is not None:
        dataset.set_epoch(epoch)


def validate_first_batch(loader: Any, schema: BatchSchema | None = None) -> bool:
    """True when the first batch is what it should be; else a `BatchError` that says what is not.

    The batch is read apart, in this process: no cursor moves, no random number is drawn and no
    worker starts. ``schema`` is that of the loader's steering dataset by default.
    """
    if not hasattr(loader, "__iter__"):
        raise PlanError(f"loader must be a loader, got {loader!r}")
    if schema is None:
        dataset = _steering_of(loader)
        schema = batch_schema() if dataset is None else dataset.schema()
    schema.check(first_batch(loader))
    return True


def first_batch(loader: Any) -> Any:
    """The batch a loader would begin with, leaving no trace in the run that follows."""
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
