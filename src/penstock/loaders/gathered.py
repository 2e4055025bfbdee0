"""A finished batch's way through torch's worker processes."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from penstock.datasets.gather import Gather


class Gathered:
    """A finished batch on its way through torch's fetcher to the collate function."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch


class GatheredDataset(Dataset[Any]):
    """A dataset whose ``__getitems__`` gives a finished batch; for torch's worker processes."""

    def __init__(self, gather: Gather, size: int) -> None:
        self.gather, self.size = gather, size

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: list[int]) -> Gathered:
        return Gathered(self.gather(np.asarray(indices, np.int64)))


def hand_over(gathered: Gathered) -> Any:
    """The collate function of a `GatheredDataset`."""
    return gathered.batch
