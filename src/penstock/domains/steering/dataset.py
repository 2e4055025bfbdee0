"""Question-source pairs with steering vectors and hard negatives, a batch in one go."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.arguments import LARGEST_SEED, a_path, choice, flag, shown, whole_number
from penstock.checks import BatchSchema, InvalidDataError
from penstock.domains.steering.config import read_config
from penstock.domains.steering.curriculum import deal_variants
from penstock.domains.steering.files import Ragged
from penstock.domains.steering.gathering import gather_batch
from penstock.domains.steering.hdf5 import convert_to_hdf5
from penstock.domains.steering.layout import (
    BY_NAME,
    SPLITS,
    VARIANTS,
    checked_split,
)
from penstock.domains.steering.reading import reading, resolve_format
from penstock.domains.steering.schema import batch_schema
from penstock.domains.steering.switches import Switches
from penstock.domains.steering.tables import (
    SteeringTables,
    maps_by_default,
    negatives_stamp,
    open_tables,
    read_split,
)
from penstock.errors import ConfigError
from penstock.keyed import current_epoch
from penstock.order import Indices

log = logging.getLogger("penstock")


class JASPERSteeringDataset(Dataset[dict[str, torch.Tensor]]):
    """One split of a steering dataset's directory.

    A sample is a pair: ``question_emb``, ``target_source_emb``, ``steering``, ``negative_embs``,
    ``cluster_id``, ``relevance``, ``centroid_distance``, ``steering_variant`` and
    ``negative_tiers``. Which steering it has is a pure function of the seed, the epoch and the
    pair: the same with any workers, ranks, order or resume. The epoch is the one that travels
    with the indices of a loader of ours; elsewhere the dataset's own (`set_epoch`).

    The tables of the directory are attributes by the names of their files (``question_embs``,
    ``pair_index``, ...). They are shared between datasets of one directory: read, never write.

    Args:
        dataset_dir: Holds config.json and the .pt files, or dataset.h5.
        split: "train", "val" or "test".
        epoch: Of the curriculum, to begin with.
        device: Where the tables are kept; the CPU by default.
        storage_format: "pt", "hdf5", or "auto": HDF5 where there is one.
        use_mmap: Leave the tables on disk, mapped: processes share them, and memory does not
            grow with them. None does so above 10 GiB.
        seed: Of the variants; None takes the directory's own.
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
        self.split = checked_split(split)
        self.device = _device(device)
        self.storage_format = resolve_format(self.dataset_dir, storage_format)
        self.config = dict(self._config.raw)
        self.embedding_dim, self.n_neg = self._config.embedding_dim, self._config.n_neg
        wanted = self._config.seed if seed is None else seed
        self.seed = whole_number("seed", wanted, minimum=0, maximum=LARGEST_SEED)
        self.use_mmap = self._maps(use_mmap)
        self._switches = Switches(epoch)
        self._edition = 0  # of the negatives held here
        self._dealt: tuple[int, Indices] = (-1, np.empty(0, np.int64))  # of the last epoch read
        self._tables: SteeringTables | None = self._open()
        pairs = len(self._tables["pair_index"])
        self._rows = read_split(self.dataset_dir, self.storage_format, self.split, pairs)
        log.info(
            "%s split of %s: %d pairs, storage=%s, mapped=%s, memory=%.1f MB",
            *(self.split, self.dataset_dir.name, len(self), self.storage_format, self.use_mmap),
            self._tables.memory_bytes / 1e6,
        )

    def _maps(self, asked: bool | None) -> bool:
        if asked is not None:
            if flag("use_mmap", asked) and self.device.type != "cpu":
                raise ConfigError(f"use_mmap=True keeps tables on disk, not on {self.device}")
            return asked
        pairs = self._config.counts.get("pairs", 0)
        return self.device.type == "cpu" and maps_by_default(self.embedding_dim, pairs)

    def _open(self) -> SteeringTables:
        return open_tables(
            self.dataset_dir,
            self.storage_format,
            self._config,
            mapped=self.use_mmap,
            device=str(self.device),
        )

    # -- samples

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Samples, one by one, as torch's loaders want them; gathered in one go."""
        batch = self.__getbatch__(np.asarray(indices, np.int64))
        columns = [tensor.unbind() for tensor in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]

    def __getbatch__(self, indices: Indices) -> dict[str, torch.Tensor]:
        """The batch of these samples: one operation for each tensor."""
        self._check(indices)
        return gather_batch(self._current_tables(), self._rows[indices], self.variants_of(indices))

    def variants_of(self, indices: Indices, epoch: int | None = None) -> Indices:
        """The steering variants of these samples (0 zero, 1 centroid, 2 keyword, 3 residual)."""
        forced = self._switches.forced
        if forced is not None:
            return np.full(len(indices), forced, np.int64)
        if epoch is None:
            epoch = current_epoch(default=self._switches.epoch)
        dealt = self._dealt
        if dealt[0] != epoch:
            shares = tuple(self._config.curriculum.probabilities(epoch).values())
            dealt = self._dealt = epoch, deal_variants(len(self), shares, self.seed, epoch)
        return dealt[1].take(indices)

    def _check(self, indices: Indices) -> None:
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"Index {wrong} out of range [0, {len(self)})")

    # -- what may change during training; worker processes see it too

    @property
    def current_epoch(self) -> int:
        """The dataset's own epoch: of samples read outside of a loader of ours."""
        return self._switches.epoch

    def set_epoch(self, epoch: int) -> None:
        """Move the curriculum to an epoch."""
        self._switches.epoch = epoch

    @property
    def steering_probs(self) -> dict[str, float]:
        """Probability of each variant in the dataset's own epoch."""
        return self._config.curriculum.probabilities(self.current_epoch)

    @property
    def distance_limit(self) -> float | None:
        """The centroid distance the curriculum has come to, where the config schedules one."""
        return self._config.curriculum.distance_limit(self.current_epoch)

    @property
    def forced_steering(self) -> str | None:
        """The variant that every pair gets; None when the curriculum decides."""
        forced = self._switches.forced
        return None if forced is None else VARIANTS[forced]

    def force_steering(self, variant: str | None) -> None:
        """Give every pair this variant; None hands back to the curriculum."""
        choice("steering", variant, (*VARIANTS, None), error=ConfigError)
        self._switches.forced = None if variant is None else VARIANTS.index(variant)

    def reload_negatives(self) -> None:
        """Read the negatives again, for new ones were written; checked as at first."""
        stamp = negatives_stamp(self.dataset_dir, self.storage_format)
        self._tables = self._held().with_negatives(self.dataset_dir, self.storage_format)
        self._switches.next_edition(stamp)
        self._edition = self._switches.edition

    def _current_tables(self) -> SteeringTables:
        """The tables; in a worker, with the negatives read again where that was asked for."""
        edition = self._switches.edition
        if edition != self._edition:
            self._tables = self._held().with_negatives(self.dataset_dir, self.storage_format)
            if negatives_stamp(self.dataset_dir, self.storage_format) != self._switches.stamp:
                raise InvalidDataError(
                    f"the negatives in {self.dataset_dir} changed again since reload_negatives(): "
                    "call it after they are written"
                )
            self._edition = edition
        return self._held()

    @property
    def served(self) -> tuple[int | None, int, int]:
        """Forced variant, edition of the negatives and own epoch: what samples depend on."""
        return self._switches.forced, self._switches.edition, self._switches.epoch

    # -- what it is

    def schema(self) -> BatchSchema:
        """What every batch of it should be."""
        clusters = len(self._held()["centroid_embs"])
        return batch_schema(self.embedding_dim, self.n_neg, clusters)

    def fingerprint(self) -> str:
        """Identity of the data: the same wherever it lies, in .pt or HDF5."""
        return self._held().fingerprint

    @cached_property
    def pair_keyword_ids(self) -> list[list[int]]:
        """The keyword ids of each pair of the directory; read when first asked for."""
        offsets, values = self._keywords()
        ends = offsets.tolist()
        return [values[a:b].tolist() for a, b in pairwise(ends)]

    def _keywords(self) -> Ragged:
        with reading(self.dataset_dir, self.storage_format) as reader:
            return reader.keywords()

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
            raise ValueError("this dataset is closed: build it again")
        return self._tables

    # -- its life

    def __getstate__(self) -> dict[str, Any]:
        """Mapped tables are mapped again where it arrives; others go along."""
        state = self.__dict__.copy()
        state.pop("pair_keyword_ids", None)
        state["_dealt"] = (-1, np.empty(0, np.int64))
        if self.use_mmap and self._tables is not None:
            state |= {"_tables": None, "_stamp": self._tables.stamp}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        stamp = state.pop("_stamp", None)
        self.__dict__.update(state)
        if stamp is not None:
            self._tables = self._open()
            self._edition = self._switches.edition
            if self._tables.stamp != stamp and not self._edition:
                raise InvalidDataError(f"{self.dataset_dir} changed since this dataset was built")

    def close(self) -> None:
        """Let go of the tables."""
        self._tables = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @classmethod
    def create_combined_splits(
        cls, dataset_dir: str | PathLike[str], epoch: int = 0, **options: Any
    ) -> dict[str, Self]:
        """All splits of a directory by name; they share its tables."""
        splits: dict[str, Self] = {}
        for split in SPLITS:
            splits[split] = cls(dataset_dir, split, epoch, **options)
        return splits

    @staticmethod
    def convert_pt_to_hdf5(
        dataset_dir: str | PathLike[str], compression: str | None = "gzip"
    ) -> Path:
        """Write dataset.h5 beside the .pt files; see `convert_to_hdf5`."""
        return convert_to_hdf5(dataset_dir, compression=compression)


def _device(device: Any) -> torch.device:
    try:
        return torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"device must be a torch.device or its name, got {shown(device)}"
        ) from error
