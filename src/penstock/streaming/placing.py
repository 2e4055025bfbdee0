"""From storage to the place in a batch: one read and one scatter a block."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from penstock.order import Indices
from penstock.sources.base import Arrays, Field, MappedSource, Source
from penstock.streaming.memory import Slots, reserve
from penstock.streaming.segments import BlockRead


class Placer:
    """Puts the samples of a block where they belong; each reader thread has one.

    Mapped storage is copied once, from the mapped page to the batch. Everything else is read into
    a scratch block that stays in cache, and scattered from there.

    Args:
        steps: Consecutive rows a sample is made of.
    """

    def __init__(self, source: Source, slots: Slots, *, block: int, steps: int) -> None:
        self._source, self._slots, self._steps = source, slots, steps
        self._mapped = source if isinstance(source, MappedSource) else None
        self._rows = block + steps - 1
        self._scratch: dict[str, npt.NDArray[np.generic]] | None = None

    def place(self, read: BlockRead, begins: Indices, first: int) -> None:
        """Read a block into the batches whose slots begin at rows ``begins[batch - first]``."""
        target = begins[read.batches - first]
        target += read.rows
        if read.keep is not None:
            target = target[read.keep]
        for name, array in self._samples(read.start, read.start + read.count).items():
            samples = as_items(array, read.count, self._steps)
            if read.keep is not None:
                samples = samples[read.keep]
            self._slots.rows[name][target] = samples

    def _samples(self, start: int, stop: int) -> Arrays:
        stop += self._steps - 1
        view = None if self._mapped is None else self._mapped.view(start, stop)
        if view is not None:
            return view
        if self._scratch is None:
            self._scratch = scratch(self._source.fields, self._rows)
        self._source.read(start, stop, self._scratch)
        return {name: array[: stop - start] for name, array in self._scratch.items()}


def scratch(fields: Mapping[str, Field], rows: int) -> dict[str, npt.NDArray[np.generic]]:
    """A block of memory for each field."""
    return {
        name: reserve(rows * field.nbytes).view(field.dtype).reshape(rows, *field.shape)
        for name, field in fields.items()
    }


def as_items(array: npt.NDArray[np.generic], count: int, steps: int) -> npt.NDArray[np.void]:
    r"""Rows ``i : i + steps`` of an array as one opaque item, for each i: a view, no copy.

    >>> as_items(np.arange(4, dtype=np.int8), count=3, steps=2).tolist()
    [b'\x00\x01', b'\x01\x02', b'\x02\x03']
    """
    rows = np.ascontiguousarray(array.reshape(len(array), -1)).view(np.uint8)
    width = rows.shape[1]
    if steps > 1:
        rows = as_strided(rows, (count, steps * width), (width, 1), writeable=False)
    return rows.view(np.dtype((np.void, steps * width)))[:, 0]
