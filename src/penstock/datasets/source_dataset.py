"""A source as a map-style dataset: a batch is one `take` of the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.order import Indices
from penstock.sources.base import Source


class SourceDataset(Dataset[Any]):
    """The samples of a source by index.

    A source with one unnamed array gives tensors, one with named fields gives a dict of tensors.

    Args:
        source: Where the samples are stored.

    >>> from penstock.sources import MemorySource
    >>> SourceDataset(MemorySource(np.arange(10))).__getbatch__(np.array([7, 2]))
    tensor([7, 2])
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the samples of these indices, read together."""
        size = len(self)
        if any(not -size <= index < size for index in indices):
            raise IndexError(f"index out of range({size})")
        batch = self.__getbatch__(np.array(indices, np.int64) % size)
        if isinstance(batch, Mapping):
            return [{name: each[i] for name, each in batch.items()} for i in range(len(indices))]
        return list(batch)

    def __getbatch__(self, indices: Indices) -> Any:
        """Return the collated batch of these indices."""
        fields = self.source.fields
        out = {n: np.empty((len(indices), *f.shape), f.dtype) for n, f in fields.items()}
        self.source.take(indices, out)
        batch = {name: torch.from_numpy(rows) for name, rows in out.items()}
        return batch[""] if list(batch) == [""] else batch

    def fingerprint(self) -> str:
        """Identity of the data."""
        return self.source.fingerprint()
