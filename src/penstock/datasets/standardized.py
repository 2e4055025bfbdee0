"""A part of a dataset, standardised by statistics that were computed before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from penstock.arguments import map_style, shown
from penstock.datasets.gather import fingerprint_of
from penstock.datasets.samples import Reader, transform_batch, transform_samples
from penstock.errors import PlanError
from penstock.fingerprints import short_digest
from penstock.order import Indices
from penstock.transforms.standardize import Standardize, Statistic


class StandardizedDataset(Dataset[Any]):
    """The samples ``indices`` of a dataset, each with ``(x - mean) / (std + 1e-8)``.

    ``x`` is the first field of a sample, or the sample itself; the other fields stay. Compute the
    statistics with `compute_standardization` on the training part alone, and use them for the
    validation part too. Goes to any worker process; a batch is one operation.

    Args:
        base_dataset: any map-style dataset with a length.
        indices: of its samples, in the order of this dataset.
        mean: a number, or one for each channel.
        std: likewise.

    >>> import torch
    >>> dataset = StandardizedDataset(torch.arange(10.0), indices=[4, 9], mean=4.0, std=2.5)
    >>> len(dataset), dataset[1]
    (2, tensor(2.))
    """

    def __init__(
        self, base_dataset: Any, indices: Iterable[int], mean: npt.ArrayLike, std: npt.ArrayLike
    ) -> None:
        self.base_dataset = map_style("base_dataset", base_dataset)
        self._members = as_indices(indices, len(base_dataset))
        self._standardize = Standardize(mean, std)
        self._reader = Reader(base_dataset)

    @property
    def indices(self) -> list[int]:
        """The samples of the base dataset, in order."""
        return [int(member) for member in self._members]

    @property
    def mean(self) -> Statistic:
        """What is subtracted; a float, or one value for each channel."""
        return self._standardize.mean

    @property
    def std(self) -> Statistic:
        """What is divided by: the deviation given and 1e-8."""
        return self._standardize.std

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: int) -> Any:
        sample = self.base_dataset[int(self._members[index])]
        return transform_samples([sample], self._standardize, _NO_KEYS)[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """The samples of these indices, standardised in one operation."""
        samples = self._reader.samples(self._members[indices].tolist())
        return transform_samples(samples, self._standardize, _NO_KEYS.repeat(len(samples)))

    @property
    def gathers(self) -> bool:
        """Is a batch one operation? Where the base dataset reads sample by sample, it is not."""
        return self._reader.gathers

    def __getbatch__(self, indices: Indices) -> Any:
        """The collated batch of these indices."""
        return transform_batch(
            self._reader.batch(self._members[indices]), self._standardize, _NO_KEYS
        )

    def set_epoch(self, epoch: int) -> None:
        """Tell the base dataset the epoch, where it can be told one."""
        getattr(self.base_dataset, "set_epoch", lambda _: None)(epoch)

    def fingerprint(self) -> str:
        """Identity of the base dataset's data and of the part taken."""
        part = short_digest([self._members.tobytes()])
        return f"{fingerprint_of(self.base_dataset)}/{part}"


_NO_KEYS = np.zeros(1, np.uint64)  # standardising draws nothing


def as_indices(indices: Iterable[int], size: int) -> Indices:
    """``indices`` as an array, refused unless all are in ``range(size)``."""
    if isinstance(indices, str) or not isinstance(indices, Iterable):
        raise PlanError(f"indices must be integers in one row, got {shown(indices)}")
    try:
        array = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices))
    except (TypeError, ValueError, OverflowError) as error:
        raise PlanError(f"indices must be integers in one row, got {shown(indices)}") from error
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise PlanError(f"indices must be integers in one row, got {array.dtype} {array.shape}")
    if array.min() < 0 or array.max() >= size:
        wrong = array.min() if array.min() < 0 else array.max()
        raise PlanError(f"indices must be in [0, {size}), the size of the dataset, got {wrong}")
    return array.astype(np.int64)
