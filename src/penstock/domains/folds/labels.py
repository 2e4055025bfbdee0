"""The classes of samples, without reading the samples where that can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import TensorDataset

from penstock.order import Indices


def labels_of(dataset: Any, indices: Indices) -> npt.NDArray[np.int64]:
    """The classes of these samples: of ``dataset.labels``, its second tensor, or each sample.

    >>> labels_of([("x", 3), ("y", 5)], np.array([1]))
    array([5])
    """
    told = getattr(dataset, "labels", None)
    if told is not None:
        return np.asarray(told, np.int64)[indices]
    if isinstance(dataset, TensorDataset):
        return np.asarray(dataset.tensors[1].numpy(force=True)[indices], np.int64)
    return np.array([int(dataset[index][1]) for index in indices.tolist()], np.int64)
