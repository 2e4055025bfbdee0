"""The steering dataset (pairs with steering vectors and negatives), and its loaders."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Subset

from penstock.arguments import LARGEST_SEED, a_path, choice, flag, instance, shown, whole_number
from penstock.checks import BatchSchema, InvalidDataError
from penstock.datasets.augmented import SharedIntegers
from penstock.distributed.agreement import agreed
from penstock.domains.steering.layout import (
    BY_NAME,
    SPLITS,
    VARIANTS,
    assign_variants,
    batch_schema,
    read_config,
)
from penstock.domains.steering.tables import (
    Files,
    SteeringTables,
    convert_to_hdf5,
    negatives_stamp,
    open_tables,
    read_split,
)
from penstock.errors import ConfigError, PlanError
from penstock.keyed import current_epoch
from penstock.loaders.base import Loader
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.pass_through import first_of, first_of_torch, preserve_random_state
from penstock.loaders.torch_loader import RankSampler, TorchLoader
from penstock.order import Cursor, Indices, Plan, PlannedBatch

log = logging.getLogger("penstock")

MAP_ABOVE: Final = 10 * 2**30  # bytes; larger tables are mapped unless the caller decides
MAP_PAIR_BYTES: Final = 4 * 15  # per dimension: its vectors, negatives, and their tables, roughly

# what may change during training, in memory that worker processes share: the epoch, a forced
# variant, how often the negatives were read again, and the state of the files they come from
_EPOCH, _FORCED, _VERSION, _STAMP = range(4)
_UNFORCED: Final = -1
_NOT_ASSIGNED: Final = (-1, np.empty(0, np.int64))


class JASPERSteeringDataset(Dataset[dict[str, torch.Tensor]]):
    """One split of a steering dataset directory.

    A sample is a pair with the fields ``question_emb``, ``target_source_emb``, ``steering``,
    ``negative_embs``, ``cluster_id``, ``relevance``, ``centroid_distance``, ``steering_variant``
    and ``negative_tiers``. Its steering variant depends only on the seed, the epoch and the pair:
    it is the same for any workers, ranks or order, and after a resume. A Penstock loader provides
    the epoch; elsewhere the dataset's own epoch counts (`set_epoch`).

    The tables of the directory are attributes with the names of their files (``question_embs``,
    ``pair_index``, ...). Datasets of one directory share them: do not write to them.

    Args:
        dataset_dir: Directory with config.json and the .pt files, or dataset.h5.
        split: "train", "val" or "test".
        epoch: First epoch of the curriculum.
        device: Where the tables are held; the CPU by default.
        storage_format: "pt", "hdf5", or "auto": HDF5 if dataset.h5 exists.
        use_mmap: Map the tables into memory instead of reading them, so that processes share
            them and memory does not grow with them. None maps above 10 GiB.
        seed: Seed of the variants; None uses the directory's own.
    """

    def __init__(
        self,
        dataset_dir: str | PathLike[str],
        split: str,
        epoch: int = 0,
        device: torch.device | str | None = None,
        storage_format: str = "auto",
        use_mmap: bool | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.dataset_dir = a_path("dataset_dir", dataset_dir)
        self._config = read_config(self.dataset_dir)
        self.split = choice("Split file not found: split", split, SPLITS, error=ConfigError)
        try:
            self.device = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"device must be a torch.device, got {shown(device)}") from error
        self._files = Files.of(self.dataset_dir, storage_format)
        self.storage_format = self._files.storage_format
        self.config = dict(self._config.raw)
        self.embedding_dim, self.n_neg = self._config.embedding_dim, self._config.n_neg
        wanted = self._config.seed if seed is None else seed
        self.seed = whole_number("seed", wanted, minimum=0, maximum=LARGEST_SEED)
        on_cpu, pairs = self.device.type == "cpu", self._config.counts.get("n_pairs", 0)
        if use_mmap is None:
            use_mmap = on_cpu and self.embedding_dim * pairs * MAP_PAIR_BYTES > MAP_ABOVE
        elif flag("use_mmap", use_mmap) and not on_cpu:
            raise ConfigError(f"use_mmap=True needs tables on the CPU, not on {self.device}")
        self.use_mmap = use_mmap
        self._switches = SharedIntegers(0, _UNFORCED, 0, 0)
        self.set_epoch(epoch)
        self._version = 0  # of the negatives held in this process
        self._assigned: tuple[int, Indices] = _NOT_ASSIGNED  # epoch and variants last used
        self._tables: SteeringTables | None = self._open()
        pairs = len(self._tables["pair_index"])
        self._rows = read_split(self._files, self.split, pairs)
        log.info(
            "%s split of %s: %d pairs, storage=%s, mapped=%s, memory=%.1f MB",
            *(self.split, self.dataset_dir.name, len(self), self.storage_format, self.use_mmap),
            sum(tensor.nbytes for tensor in self._tables.tensors.values()) / 1e6,
        )

    def _open(self) -> SteeringTables:
        device = str(self.device)
        return open_tables(self._files, self._config, mapped=self.use_mmap, device=device)

    # -- samples

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Return a list of samples, as torch's loaders expect; gathered as one batch."""
        batch = self.__getbatch__(np.asarray(indices, np.int64))
        columns = [tensor.unbind() for tensor in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]

    def __getbatch__(self, indices: Indices) -> dict[str, torch.Tensor]:
        """Return the batch of these samples, with one operation per tensor."""
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"Index {wrong} out of range [0, {len(self)})")
        return self._current_tables().batch(self._rows[indices], self.variants_of(indices))

    def variants_of(self, indices: Indices, epoch: int | None = None) -> Indices:
        """Return the steering variants of samples (0 zero, 1 centroid, 2 keyword, 3 residual).

        Args:
            indices: Of the samples in this split.
            epoch: None for the loader's epoch, or the dataset's own outside of a loader.
        """
        forced = self._switches[_FORCED]
        if forced != _UNFORCED:
            return np.full(len(indices), forced, np.int64)
        if epoch is None:
            epoch = current_epoch(default=self.current_epoch)
        assigned = self._assigned
        if assigned[0] != epoch:
            shares = tuple(self._config.curriculum.probabilities(epoch).values())
            assigned = self._assigned = epoch, assign_variants(len(self), shares, self.seed, epoch)
        return assigned[1].take(indices)

    # -- settings that may change during training, also in worker processes

    @property
    def current_epoch(self) -> int:
        """The dataset's own epoch, used for samples read outside of a Penstock loader."""
        return self._switches[_EPOCH]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the curriculum."""
        self._switches[_EPOCH] = whole_number("epoch", epoch, minimum=0)

    @property
    def steering_probs(self) -> dict[str, float]:
        """Probability of each variant in the dataset's own epoch."""
        return self._config.curriculum.probabilities(self.current_epoch)

    @property
    def distance_limit(self) -> float | None:
        """The scheduled centroid distance of the dataset's own epoch; None if there is none."""
        return self._config.curriculum.distance_limit(self.current_epoch)

    @property
    def forced_steering(self) -> str | None:
        """The variant of every pair; None if the curriculum decides."""
        forced = self._switches[_FORCED]
        return None if forced == _UNFORCED else VARIANTS[forced]

    def force_steering(self, variant: str | None) -> None:
        """Use one variant for every pair; None returns to the curriculum."""
        choice("steering", variant, (*VARIANTS, None), error=ConfigError)
        self._switches[_FORCED] = _UNFORCED if variant is None else VARIANTS.index(variant)

    def reload_negatives(self) -> None:
        """Read the negatives again after new ones were written; they are checked as at first."""
        stamp = negatives_stamp(self._files)
        self._tables = self._held().with_negatives(self._files)
        self._switches[_STAMP] = stamp
        self._switches[_VERSION] += 1  # last: a worker that sees it also sees the stamp
        self._version = self._switches[_VERSION]

    def _current_tables(self) -> SteeringTables:
        """Return the tables; a worker first reads negatives that another process announced."""
        version = self._switches[_VERSION]
        if version != self._version:
            self._tables = self._held().with_negatives(self._files)
            if negatives_stamp(self._files) != self._switches[_STAMP]:
                raise InvalidDataError(
                    f"the negatives in {self.dataset_dir} changed again since reload_negatives(): "
                    "call it after they are written"
                )
            self._version = version
        return self._held()

    @property
    def served(self) -> tuple[int, int, int]:
        """What samples depend on: forced variant, version of the negatives, and own epoch."""
        return self._switches[_FORCED], self._switches[_VERSION], self._switches[_EPOCH]

    # -- contents

    def schema(self) -> BatchSchema:
        """Return the schema that every batch must satisfy."""
        clusters = len(self._held()["centroid_embs"])
        return batch_schema(self.embedding_dim, self.n_neg, clusters)

    def fingerprint(self) -> str:
        """Return the identity of the data, the same for .pt and HDF5 and in any directory."""
        return self._held().fingerprint

    @cached_property
    def pair_keyword_ids(self) -> list[list[int]]:
        """The keyword ids of each pair of the directory, read at the first use."""
        offsets, values = self._files.keywords()
        return [values[a:b].tolist() for a, b in pairwise(offsets.tolist())]

    def __getattr__(self, name: str) -> torch.Tensor:
        tables = self.__dict__.get("_tables")
        if name not in BY_NAME or tables is None:
            closed = " (it is closed)" if name in BY_NAME else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{closed}")
        if name.endswith("_idx"):
            raise AttributeError(f"{name!r} is a split: use JASPERSteeringDataset(dir, split)")
        tensor: torch.Tensor = tables[name]
        return tensor

    def _held(self) -> SteeringTables:
        if self._tables is None:
            raise ValueError("this dataset is closed: create a new one")
        return self._tables

    # -- pickling and closing

    def __getstate__(self) -> dict[str, Any]:
        """Leave out mapped tables: the receiving process maps them itself."""
        state = self.__dict__.copy()
        state.pop("pair_keyword_ids", None)
        state["_assigned"] = _NOT_ASSIGNED
        if self.use_mmap and self._tables is not None:
            state |= {"_tables": None, "_stamp": self._tables.stamp}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        stamp = state.pop("_stamp", None)
        self.__dict__.update(state)
        if stamp is not None:
            self._tables = self._open()
            self._version = self._switches[_VERSION]
            if self._tables.stamp != stamp and not self._version:
                raise InvalidDataError(f"{self.dataset_dir} changed since this dataset was built")

    def close(self) -> None:
        """Release the tables."""
        self._tables = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @classmethod
    def create_combined_splits(
        cls, dataset_dir: str | PathLike[str], epoch: int = 0, **options: Any
    ) -> dict[str, Self]:
        """Return all splits of a directory by name; they share its tables."""
        return {split: cls(dataset_dir, split, epoch, **options) for split in SPLITS}

    @staticmethod
    def convert_pt_to_hdf5(dataset_dir: Any, compression: str | None = "gzip") -> Path:
        """Write dataset.h5 next to the .pt files; see `convert_to_hdf5`."""
        return convert_to_hdf5(dataset_dir, compression=compression)


class SteeringLoader(ChunkedDataLoader):
    """A `ChunkedDataLoader` over a steering dataset, made by `create_loader`, with its arguments.

    ``force_steering`` and ``reload_negatives`` of its dataset take effect at the next batch, with
    any number of workers: batches that workers prepared before are discarded.
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
