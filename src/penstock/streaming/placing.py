"""From storage to the place in a batch: one read and one scatter a block."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.order import Indices
from penstock.sources.base import Arrays, Field, MappedSource, Source
from penstock.streaming.memory import Slots, reserve
from penstock.streaming.past_cache import pays, scatter_past_cache
from penstock.streaming.replacing import BlockReplacing
from penstock.streaming.segments import BlockRead

FEW = 500  # items, up to which numpy moves them under the interpreter's lock
COPIED = 1 << 20  # bytes at most that are copied where not all samples of a block are wanted
LONG = 1 << 16  # bytes, from which on others should not have to wait for that


class Placer:
    """Puts the samples of a block where they belong; each reader thread has one.

    Mapped storage is copied once, from the mapped page to the batch. Everything else is read into
    a scratch block that stays in cache, and scattered from there.

    Args:
        steps: Consecutive rows a sample is made of.
        replacing: Reads another block where one cannot be read; None raises what the source raised.
    """

    def __init__(
        self,
        source: Source,
        slots: Slots,
        *,
        block: int,
        steps: int,
        replacing: BlockReplacing | None = None,
    ) -> None:
        self._source, self._slots, self._steps = source, slots, steps
        self._replacing = replacing
        self._mapped = source if isinstance(source, MappedSource) else None
        self._rows = block + steps - 1
        self._scratch: dict[str, npt.NDArray[np.generic]] | None = None

    def place(self, read: BlockRead, targets: Indices) -> None:
        """Read a block into the rows of the slots that the round has for its samples."""
        try:
            arrays = self._samples(read.start, read.start + read.count)
        except SourceError as error:
            if self._replacing is None:
                raise
            arrays = self._replacing.read(read, error, self._samples)
        for name, array in arrays.items():
            rows = self._slots.rows[name]
            samples = as_items(array, read.count, rows.dtype)
            if read.keep is None:
                scatter(samples, rows, targets[read.first : read.first + read.count])
                continue
            kept = np.flatnonzero(read.keep)
            step = max(1, COPIED // rows.itemsize)
            for at in range(0, len(kept), step):  # a copy, and rows of a sample are repeated in it
                some = samples[kept[at : at + step]]
                scatter(some, rows, targets[read.first + at : read.first + at + len(some)])

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


def as_items(
    array: npt.NDArray[np.generic], count: int, item: np.dtype[np.void]
) -> npt.NDArray[np.void]:
    r"""As many rows of an array as an item has bytes for, from row i on, for each i: a view.

    >>> as_items(np.arange(4, dtype=np.int8), count=3, item=np.dtype("V2")).tolist()
    [b'\x00\x01', b'\x01\x02', b'\x02\x03']
    """
    stored = np.ascontiguousarray(array)
    return np.ndarray((count,), item, stored, 0, (array.nbytes // len(array),))


def scatter(items: npt.NDArray[np.void], rows: npt.NDArray[np.void], targets: Indices) -> None:
    """``rows[targets] = items``, without the interpreter's lock where it takes long.

    numpy keeps the lock for few items, however large; never for rows of bytes.
    """
    if pays(rows):
        scatter_past_cache(items, rows, targets)
    elif len(items) > FEW or items.nbytes < LONG:
        rows[targets] = items
    else:
        rows[:, None].view(np.uint8)[targets] = items[:, None].view(np.uint8)
