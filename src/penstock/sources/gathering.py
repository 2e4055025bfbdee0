"""Given samples out of a source that is read by ranges: each block once, rows to their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from penstock.sources.base import Field
from penstock.sources.scratch import scratch_array

ReadRows = Callable[[int, int, npt.NDArray[np.generic]], None]
ViewRows = Callable[[int, int], npt.NDArray[np.generic] | None]


def block_runs(
    indices: npt.NDArray[np.int64], block_samples: int
) -> Iterator[npt.NDArray[np.intp]]:
    """Places of ``indices``, grouped by the block they fall in, each group in storage order.

    >>> [run.tolist() for run in block_runs(np.array([9, 0, 4, 1]), 4)]
    [[1, 3], [2], [0]]
    """
    if not len(indices):
        return
    places = np.argsort(indices, kind="stable")
    borders = np.flatnonzero(np.diff(indices[places] // block_samples)) + 1
    yield from np.split(places, borders)


def take_by_blocks(
    read_rows: ReadRows,
    view_rows: ViewRows,
    field: Field,
    block_samples: int,
    indices: npt.NDArray[np.int64],
    out: npt.NDArray[np.generic],
) -> None:
    """Fill ``out`` with the rows ``indices``: each block is looked at in place, or read once."""
    for places in block_runs(indices, block_samples):
        wanted = indices[places]
        first, last = int(wanted[0]), int(wanted[-1])
        rows = view_rows(first, last + 1)
        if rows is None:
            rows = scratch_array("rows", (last - first + 1, *field.shape), field.dtype)
            read_rows(first, last + 1, rows)
        out[places] = rows[wanted - first]
