"""Partitions in chunks: which sizes they have, and where their loaders are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.datamodules.sequence.chunk_sizes import partition_batches
from penstock.datamodules.sequence.kept import KeptLoaders


class ChunkedPartitions:
    """The chunk sizes of a dataset's partitions, given or inferred; in batches of this rank."""

    explicit_train_chunk_size: int | None
    explicit_val_chunk_size: int | None
    dataset_train: Any
    dataset_val: Any
    dataset_test: Any
    _asked: Mapping[str, Any]  # what a loader was last asked for with
    _loaders: KeptLoaders

    @property
    def use_chunked_training(self) -> bool:
        """Was one of the chunk sizes given?"""
        explicit = self.explicit_train_chunk_size, self.explicit_val_chunk_size
        return explicit != (None, None)

    @property
    def train_chunk_size(self) -> int | None:
        """Batches a chunk of training; None without chunks, and before ``setup()`` if inferred."""
        return self._infer_chunk_sizes()[0]

    @property
    def val_chunk_size(self) -> int | None:
        """Batches of a validation; None without chunks, and before ``setup()`` if inferred."""
        return self._infer_chunk_sizes()[1]

    def _infer_chunk_sizes(self, **loader: Any) -> tuple[int | None, int | None]:
        """Both sizes for such a loader: a missing one is that of its whole partition."""
        train, val = self.explicit_train_chunk_size, self.explicit_val_chunk_size
        if train is None and val is not None:
            train = self._get_train_partition_size(**loader)
        elif val is None and train is not None:
            val = self._get_val_partition_size(**loader)
        return train, val

    def _get_train_partition_size(self, **loader: Any) -> int | None:
        """Batches of the training partition on this rank."""
        return self._partition_size(self.dataset_train, **loader)

    def _get_val_partition_size(self, **loader: Any) -> int | None:
        """Batches of the validation partition on this rank."""
        return self._partition_size(self.dataset_val, **loader)

    def _partition_size(self, dataset: Any, **loader: Any) -> int | None:
        options = {**self._asked, **loader}
        ranks = {key: options.get(key) for key in ("rank", "world_size")}
        return partition_batches(dataset, options.get("batch_size"), **ranks)

    @property
    def current_train_chunk(self) -> int:
        """The chunk of its epoch that the training loader is in."""
        return self._current_chunk("train")

    @property
    def current_val_chunk(self) -> int:
        """The chunk that is validated on next; always 0, unless ``val_cycle``."""
        return self._current_chunk("val")

    def _current_chunk(self, side: str) -> int:
        loader = self._loaders[side]
        return 0 if loader is None or not loader.use_chunked else loader.current_chunk
