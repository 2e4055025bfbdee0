"""Loaders of a dataset's partitions: made when they are asked for, then kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from penstock.datamodules.closing import Closing
from penstock.datamodules.sequence.chunked import ChunkedPartitions
from penstock.datamodules.sequence.collation import SequenceCollation
from penstock.datamodules.sequence.loader_keys import loader_options
from penstock.datamodules.sequence.training_order import training_loader
from penstock.loaders.partition import validation_loader
from penstock.ranks import ranks
from penstock.seeds import Seed


class PartitionLoaders(SequenceCollation, ChunkedPartitions, Closing):
    """A loader for each partition, in chunks where a size is given; a ``with`` block ends them."""

    loader_args: ClassVar[tuple[str, ...]] = ()  # keys of a loader that are meant for this class
    _plain: ClassVar[type[Any]]  # this class without Lightning: the one that pickle finds

    loader: dict[str, Any]  # what they are made with if not told otherwise
    _chunk_seed: Seed
    _split_seed: Seed | None
    chunk_shuffle: bool
    chunk_order: str
    val_cycle: bool

    @property
    def chunk_seed(self) -> int:
        """The seed in use: passed in, drawn at random, or restored from a state."""
        return self._chunk_seed.value

    def train_dataloader(self, **loader: Any) -> Any:
        """Batches to train on, shuffled: the next chunk, or epoch, at each ``iter()``."""
        self._asked = self.loader | loader
        return self._train_dataloader(self.dataset_train, **self._asked)

    def val_dataloader(self, **loader: Any) -> Any:
        """Batches to validate on; None where there is nothing (to Lightning: an empty list)."""
        self._asked = self.loader | loader
        found = self._eval_dataloader(self.dataset_val, _side_="val", **self._asked)
        return [] if found is None and getattr(self, "trainer", None) is not None else found

    def test_dataloader(self, **loader: Any) -> Any:
        """Batches of the whole test partition, in order, the same each time; None without one."""
        return self._eval_dataloader(self.dataset_test, **(self.loader | loader))

    def _train_dataloader(self, dataset: Any, **loader: Any) -> Any:
        if dataset is None:
            return None
        if self.use_chunked_training:
            return self._create_chunked_train_dataloader(**loader)
        return self._kept("train", dataset, None, loader)

    def _create_chunked_train_dataloader(self, **loader: Any) -> Any:
        size = self._infer_chunk_sizes(**loader)[0]
        return self._kept("train", self.dataset_train, size, loader)

    def _eval_dataloader(self, dataset: Any, *, _side_: str = "test", **loader: Any) -> Any:
        if dataset is None:
            return None
        if _side_ == "val" and self.use_chunked_training:
            return self._create_chunked_val_dataloader(**loader)
        return self._kept(_side_, dataset, None, loader)

    def _create_chunked_val_dataloader(self, **loader: Any) -> Any:
        size = self._infer_chunk_sizes(**loader)[1]
        return self._kept("val", self.dataset_val, size, loader)

    def _kept(
        self, side: str, dataset: Any, chunk_size: int | None, loader: Mapping[str, Any]
    ) -> Any:
        """The loader of a side: the one that was given out, or one built now."""
        options = {"chunk_size": chunk_size, **loader}
        name = side if loader.get("resolution", 1) == 1 else f"{side}/{loader['resolution']}"
        build = partial(self._build, side, dataset, chunk_size, loader)
        return self._loaders.get(name, dataset, options, build)

    def _build(
        self, side: str, dataset: Any, chunk_size: int | None, loader: Mapping[str, Any]
    ) -> Any:
        kind, options = loader_options(
            loader, self.collate_args, self.loader_args, self._collation()
        )
        if self._split_seed is not None:
            self._split_seed.for_ranks(ranks())  # refused where each rank split its own way
        options.setdefault("seed", self._chunk_seed)
        if side == "train":
            order = self.chunk_order if self.chunk_shuffle else "sequential"
            return training_loader(dataset, chunk_size, order=order, kind=kind, **options)
        options.pop("shuffle", None)
        cycle = self.val_cycle and side == "val"
        return validation_loader(dataset, chunk_size=chunk_size, cycle=cycle, kind=kind, **options)

    def _collation(self) -> Callable[..., Any]:
        """What forms batches: of the class, so that it goes to workers; or of this very object."""
        if "_collate_fn" in vars(self):
            own: Callable[..., Any] = vars(self)["_collate_fn"]
            return own
        found = inspect.getattr_static(self._plain, "_collate_fn")
        of_class = isinstance(found, classmethod | staticmethod)
        return self._plain._collate_fn if of_class else self._collate_fn

    # -- the end

    def close(self) -> None:
        """End every thread and process of the loaders; they may be iterated again."""
        self._loaders.close()
