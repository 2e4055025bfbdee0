"""Where a sample lives: the file and the place in it, as far as its dataset can tell."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from torch.utils.data import ConcatDataset, Subset


def locate(dataset: Any, index: int) -> str | None:
    """Words for where a sample is; None where the dataset cannot tell.

    A dataset of a user's own tells with a method ``locate(index)``. Nothing is read.

    >>> class Lines:
    ...     def locate(self, index):
    ...         return f"book.txt:{index + 1}"
    >>> locate(Subset(Lines(), [7, 8]), 1)
    'book.txt:9'
    """
    if isinstance(dataset, Subset):
        return locate(dataset.dataset, int(dataset.indices[index]))
    if isinstance(dataset, ConcatDataset):
        part = bisect_right(dataset.cumulative_sizes, index)
        before = dataset.cumulative_sizes[part - 1] if part else 0
        return locate(dataset.datasets[part], index - before)
    told = getattr(dataset, "locate", None)
    if callable(told):
        return str(told(index))
    return None
