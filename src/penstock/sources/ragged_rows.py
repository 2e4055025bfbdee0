"""Rows of different lengths in numpy: offsets, and taking single rows out of blocks of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.errors import SourceError
from penstock.sources.array_source import block_runs
from penstock.sources.base import Arrays, Indices, Rows, Source, items_of, lengths_of, offsets_of


def new_buffers(source: Source, names: Iterable[str], start: int, stop: int) -> dict[str, Rows]:
    """Return memory for samples ``start:stop``."""
    found = {}
    for name in names:
        field = source.fields[name]
        rows = items_of(source, name, start, stop) if field.ragged else stop - start
        found[name] = np.empty((rows, *field.shape), field.dtype)
    return found


def ragged_index(starts: Indices, lengths: Indices) -> Indices:
    """Return the index of every item of rows that begin at ``starts``.

    >>> ragged_index(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    index: Indices = np.repeat(starts - (ends - lengths), lengths)
    index += np.arange(len(index))
    return index


def checked_offsets(offsets: Indices, items: int, name: str) -> Indices:
    """Return the offsets of a ragged field, if they are those of ``items`` stored items.

    >>> checked_offsets(np.array([0, 2, 1]), 1, "x")
    Traceback (most recent call last):
    ...
    penstock.errors.SourceError: the offsets of x decrease at sample 1: ...
    """
    steps = np.diff(offsets)
    if len(steps) and int(steps.min()) < 0:
        raise SourceError(
            f"the offsets of {name} decrease at sample {int(np.argmax(steps < 0))}: the file is "
            "damaged; write or copy it again"
        )
    if int(offsets[0]) != 0 or int(offsets[-1]) != items:
        raise SourceError(
            f"the offsets of {name} go from {int(offsets[0])} to {int(offsets[-1])}, but "
            f"{items} items are stored: the file is damaged; write or copy it again"
        )
    offsets = offsets.astype(np.int64, copy=False)
    offsets.flags.writeable = False
    return offsets


def take_by_blocks(source: Source, indices: Indices, out: Arrays, block_samples: int) -> None:
    """Fill ``out`` with samples: each block of the storage that holds some of them is read once.

    Args:
        source: Where blocks are read.
        indices: The samples, in any order.
        out: Buffers of exactly these samples.
        block_samples: Samples that storage has together.
    """
    lengths = {n: lengths_of(source, n, indices) for n in out if source.fields[n].ragged}
    begins = {name: np.cumsum(each) - each for name, each in lengths.items()}
    for positions in block_runs(indices, block_samples):
        wanted = indices[positions]
        start, stop = int(wanted[0]), int(wanted[-1]) + 1
        block = new_buffers(source, out, start, stop)
        source.read(start, stop, block)
        for name, values in block.items():
            if name in lengths:
                offsets, counts = offsets_of(source, name), lengths[name][positions]
                into = ragged_index(begins[name][positions], counts)
                out[name][into] = values[ragged_index(offsets[wanted] - offsets[start], counts)]
            else:
                out[name][positions] = values[wanted - start]
