"""Rows of different lengths in numpy: their offsets, and taking single rows out of blocks.

The items of a ragged field are one after the other, and ``offsets[i]`` is where those of sample i
begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.sources.assembly import by_leaf
from penstock.sources.boxes import Leaf, Located
from penstock.sources.contract import Arrays, Indices, Rows, Source


def ragged_fields(source: Source, names: Iterable[str]) -> list[str]:
    """Return which of the names are ragged fields of the source."""
    fields = source.fields
    return [name for name in names if name in fields and fields[name].ragged]


def ragged_bytes(source: Source) -> int:
    """Return the bytes of the ragged fields of all samples."""
    names = ragged_fields(source, source.fields)
    return sum(source.fields[n].nbytes * int(offsets_of(source, n)[-1]) for n in names)


def offsets_of(source: Source, name: str) -> Indices:
    """Return the offsets of a ragged field of any source."""
    offsets: Indices = source.offsets(name)  # type: ignore[attr-defined]  # an optional method
    return offsets


def items_of(source: Source, name: str, start: int, stop: int) -> int:
    """Return how many items samples ``start:stop`` of a ragged field have."""
    offsets = offsets_of(source, name)
    return int(offsets[stop] - offsets[start])


def lengths_of(source: Source, name: str, indices: Indices) -> Indices:
    """Return how many items each of some samples of a ragged field has."""
    offsets = offsets_of(source, name)
    return offsets[indices + 1] - offsets[indices]


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
        block_samples: Samples in a block of the storage.
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


def block_runs(indices: Indices, block_samples: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the positions in ``indices`` for each block of storage, in storage order.

    >>> [run.tolist() for run in block_runs(np.array([9, 0, 4, 1]), 4)]
    [[1, 3], [2], [0]]
    """
    if not len(indices):
        return
    positions = np.argsort(indices, kind="stable")
    borders = np.flatnonzero(np.diff(indices[positions] // block_samples)) + 1
    yield from np.split(positions, borders)


# -- composed sources


def located_offsets(leaves: Sequence[Leaf], found: Located) -> Indices:
    """Return the offsets of a ragged output, whose samples are rows of leaves."""
    return np.append(0, np.cumsum(_located_lengths(leaves, found)))


def _located_lengths(leaves: Sequence[Leaf], found: Located) -> Indices:
    lengths = np.zeros(len(found.leaf), np.int64)
    for number, here in by_leaf(found.leaf) if len(lengths) else ():
        leaf = leaves[number]
        lengths[here] = lengths_of(leaf.source, leaf.field, found.rows[here])
    return lengths


def take_located(leaves: Sequence[Leaf], found: Located, out: Rows) -> None:
    """Fill ``out`` with the items of a ragged output."""
    lengths = _located_lengths(leaves, found)
    begins = np.cumsum(lengths) - lengths
    for number, here in by_leaf(found.leaf) if len(lengths) else ():
        leaf, rows = leaves[number], found.rows[here]
        first, last = int(rows[0]), int(rows[-1])
        items = np.empty((int(lengths[here].sum()), *leaf.shape), leaf.dtype)
        if last - first + 1 == len(rows) and (np.diff(rows) == 1).all():
            leaf.source.read(first, last + 1, {leaf.field: items})
        else:
            leaf.source.take(rows, {leaf.field: items})
        if isinstance(here, slice):
            out[int(begins[here][0]) :][: len(items)] = items
        else:
            out[ragged_index(begins[here], lengths[here])] = items
