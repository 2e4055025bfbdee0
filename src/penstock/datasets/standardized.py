"""Standardised datasets, and the mean and standard deviation of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import flag, map_style, shown
from penstock.datasets.gather import Reader, TransformedDataset, first_field
from penstock.errors import BatchError, PlanError
from penstock.extras import progress_bar
from penstock.fingerprints import short_digest
from penstock.order import Indices
from penstock.sources.contract import Indexed, checked_indices
from penstock.sources.statistics import Moments
from penstock.transforms.augmentation import Standardize, Statistic


class StandardizedDataset(TransformedDataset):
    """The samples ``indices`` of a dataset, each with ``(x - mean) / (std + 1e-8)``.

    ``x`` is the first field of a sample, or the sample itself; the other fields stay. Compute the
    statistics with `compute_standardization` on the training part alone, and use them for the
    validation part too. It can be sent to worker processes, and a batch is one
    operation.

    Args:
        base_dataset: A map-style dataset with a length.
        indices: Its samples, in the order of this dataset.
        mean: A number, or one for each channel.
        std: A number, or one for each channel.

    >>> import torch
    >>> dataset = StandardizedDataset(torch.arange(10.0), indices=[4, 9], mean=4.0, std=2.5)
    >>> len(dataset), dataset[1]
    (2, tensor(2.))
    """

    def __init__(
        self,
        base_dataset: Indexed,
        indices: Iterable[int],
        mean: npt.ArrayLike,
        std: npt.ArrayLike,
    ) -> None:
        super().__init__(base_dataset)
        self._indices = as_indices(indices, len(self.base_dataset))
        self.transform: Standardize = Standardize(mean, std)
        # a float, or one value for each channel; std is the divisor: with 1e-8 added
        self.mean, self.std = self.transform.mean, self.transform.std

    @property
    def indices(self) -> list[int]:
        """The samples of the base dataset, in order."""
        return list(self._indices.tolist())

    def __len__(self) -> int:
        return len(self._indices)

    def _members(self, indices: Indices) -> Indices:
        found: Indices = self._indices[indices]
        return found

    def set_epoch(self, epoch: int) -> None:
        """Call ``set_epoch`` of the base dataset if it has one."""
        getattr(self.base_dataset, "set_epoch", lambda _: None)(epoch)

    def fingerprint(self) -> str:
        """Identity of the base dataset's data and of the part taken."""
        part = short_digest([self._indices.tobytes()])
        return f"{super().fingerprint()}/{part}"


WorkerSafeStandardizedDataset = StandardizedDataset  # an alias: all datasets are worker-safe


def as_indices(indices: Iterable[int], size: int) -> Indices:
    """Return ``indices`` as an array; refuse those outside ``range(size)``."""
    if isinstance(indices, str) or not isinstance(indices, Iterable):
        raise PlanError(f"indices must be a flat array of integers, got {shown(indices)}")
    return checked_indices(size, indices if isinstance(indices, np.ndarray) else list(indices))


BATCH_VALUES: Final = 2**18  # at a time: as float64 they stay in a processor's cache
_Array = npt.NDArray[np.float64]


def compute_standardization(
    dataset: Indexed,
    indices: Iterable[int] | None = None,
    *,
    per_channel: bool = False,
    progress: bool | None = None,
) -> tuple[Statistic, Statistic]:
    """Return the mean and standard deviation over every value of these samples.

    Equal to ``numpy.mean`` and ``numpy.std`` of all values in float64, computed in one pass without
    holding the data. No random number is drawn, so the result never varies.

    Args:
        dataset: A dataset of tensors, or of tuples whose first field is a tensor.
        indices: The samples of the training part only; None for the whole dataset.
        per_channel: Compute one mean and deviation for each entry of a sample's first axis.
        progress: None shows a progress bar on a terminal; True always, False never.

    >>> compute_standardization(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), [0, 1])
    (4.0, 2.23606797749979)
    """
    size = len(map_style("dataset", dataset))
    flag("per_channel", per_channel)
    if progress is not None:
        flag("progress", progress)
    members = np.arange(size) if indices is None else as_indices(indices, size)
    if not len(members):
        raise PlanError("statistics need at least 1 sample, got no indices")
    reader, moments = Reader(dataset), Moments()
    each = max(1, first_field(dataset[int(members[0])]).numel())
    step = min(max(1, BATCH_VALUES // each), 1024)
    with progress_bar("statistics", len(members), progress) as advance:
        for start in range(0, len(members), step):
            part = members[start : start + step]
            for samples, stack in _stacks(reader, part):
                moments.add(_rows(samples, stack, per_channel=per_channel))
            advance(len(part))
    if per_channel:
        return moments.mean, moments.std
    return float(moments.mean[0]), float(moments.std[0])


def _stacks(reader: Reader, indices: Indices) -> Iterator[tuple[Indices, torch.Tensor]]:
    """Yield samples, stacked if they have one shape: sums are the same however they are read."""
    if reader.gathers:
        yield indices, first_field(reader.batch(indices))
        return
    fields = [first_field(sample) for sample in reader.samples(indices.tolist())]
    if len({field.shape for field in fields}) == 1:
        yield indices, torch.stack(fields)
        return
    for index, field in zip(indices, fields, strict=True):
        yield np.array([index]), field.unsqueeze(0)


def _rows(samples: Indices, stack: torch.Tensor, *, per_channel: bool) -> _Array:
    """Return the values of these samples in float64: one row per channel, or one for all."""
    values = stack.to("cpu", torch.float64)
    # one sum finds NaN and infinity anywhere; which sample has them is looked up only then
    if not values.sum().isfinite():
        finite = values.isfinite().reshape(len(values), -1).all(1)
        worst = samples[int(finite.int().argmin())]
        raise BatchError(f"sample {worst} has a value that is not finite: repair or exclude it")
    if not per_channel:
        return values.reshape(1, -1).numpy()
    if values.ndim < 2:
        raise BatchError("per_channel needs samples with an axis of channels, got single numbers")
    return values.transpose(0, 1).reshape(values.shape[1], -1).numpy()
