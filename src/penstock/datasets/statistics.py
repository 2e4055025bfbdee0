"""Mean and deviation of a dataset: exact, in one pass, however large it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import flag, map_style
from penstock.datasets.progress import progress_bar
from penstock.datasets.samples import Reader, first_field
from penstock.datasets.standardized import as_indices
from penstock.errors import BatchError, PlanError
from penstock.order import Indices
from penstock.transforms.standardize import Statistic

BATCH_VALUES: Final = 2**18  # at a time: as float64 they stay in a processor's cache
_Array = npt.NDArray[np.float64]


def compute_standardization(
    dataset: Any,
    indices: Iterable[int] | None = None,
    *,
    per_channel: bool = False,
    progress: bool | None = None,
) -> tuple[Statistic, Statistic]:
    """The mean and standard deviation over every value of these samples.

    Exact, as ``numpy.mean`` and ``numpy.std`` of all of them in float64 at once, in one pass over
    the data and without holding it; nothing is drawn, so the result never varies.

    Args:
        dataset: its samples are tensors, or tuples whose first field is one.
        indices: of the training part, and of nothing else; None is the whole dataset.
        per_channel: one mean and deviation for each entry of a sample's first axis.
        progress: None shows a bar on a terminal.

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


class Moments:
    """Mean and deviation of rows of values that arrive in parts, one of each row.

    Parts are merged by Chan's formula, so a mean far from 0 costs no precision.

    >>> moments = Moments()
    >>> moments.add(np.array([[1.0, 2.0]]))
    >>> moments.add(np.array([[3.0]]))
    >>> moments.mean.tolist(), moments.std.round(4).tolist()
    ([2.0], [0.8165])
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: _Array = np.zeros(1)
        self._squares: _Array = np.zeros(1)  # of distances from the mean, summed

    def add(self, values: _Array) -> None:
        """Count in ``values``, a part of each row."""
        count, mean = values.shape[1], values.mean(axis=1)
        distances = values - mean[:, None]
        squares = np.einsum("ij,ij->i", distances, distances)
        both, apart = self.count + count, mean - self.mean
        self.mean = self.mean + apart * (count / both)
        self._squares = self._squares + squares + np.square(apart) * (self.count * count / both)
        self.count = both

    @property
    def std(self) -> _Array:
        """The deviation of each row, of the whole population (``ddof=0``)."""
        return np.sqrt(self._squares / self.count)


def _stacks(reader: Reader, indices: Indices) -> Iterator[tuple[Indices, torch.Tensor]]:
    """These samples, stacked where they have one shape, so that all ways of reading sum alike."""
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
    """The values of these samples in float64: a row for each channel, or one for all."""
    values = stack.to("cpu", torch.float64)
    if not values.sum().isfinite():
        finite = values.isfinite().reshape(len(values), -1).all(1)
        worst = samples[int(finite.int().argmin())]
        raise BatchError(
            f"sample {worst} has a value that is not finite: repair it, or leave it out"
        )
    if not per_channel:
        return values.reshape(1, -1).numpy()
    if values.ndim < 2:
        raise BatchError("per_channel needs samples with an axis of channels, got single numbers")
    return values.transpose(0, 1).reshape(values.shape[1], -1).numpy()
