"""From stored boxes to samples: what to read for some samples, and where each sample is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from operator import sub
from typing import Any

import numpy as np

from penstock.sources.boxes import Borders, Leaf, Located, Output, Places, Span
from penstock.sources.contract import Arrays, Indices, Rows, Source, view_of

PIECE_BYTES = 1 << 20  # of rows that are read whole because their storage cannot read a part

COMPARED = 1 << 20  # pairs of a row and a canvas at a time


# -- what to read


def store_spans(
    leaves: Sequence[Leaf],
    outputs: Mapping[str, Output],
    located: Mapping[str, Located],
    cell: Indices,
) -> dict[int, list[Span]]:
    """Return what to read for some samples, by store; see `ComposedSource.needs`.

    Args:
        leaves: All leaves.
        outputs: The outputs by name.
        located: Where each output of the samples is.
        cell: The cell of each sample.
    """
    stores: dict[int, list[str]] = {}
    for name, output in outputs.items():
        stores.setdefault(output.store, []).append(name)
    spans = {}
    for store, names in stores.items():
        output, each = outputs[names[0]], [located[name] for name in names]
        spans[store] = (
            canvas_spans(leaves, each, output, cell) if output.cut else row_spans(leaves, each)
        )
    return spans


def row_spans(leaves: Sequence[Leaf], located: Sequence[Located]) -> list[Span]:
    """Return spans of whole rows with all rows of these outputs, ascending by (leaf, start)."""
    spans = []
    for number in np.unique(np.concatenate([found.leaf for found in located])).tolist():
        leaf = leaves[number]
        rows = [found.rows[found.leaf == number].ravel() for found in located]
        low, high = (0,) * len(leaf.shape), leaf.shape
        for start, stop in row_ranges(distinct(np.concatenate(rows)), leaf.chunks[0]):
            spans.append(Span(number, start, stop, low, high))
    return spans


def canvas_spans(
    leaves: Sequence[Leaf], located: Sequence[Located], output: Output, cell: Indices
) -> list[Span]:
    """Return spans with the rows and the hull of the patches of each cell, joined where possible.

    Args:
        leaves: All leaves.
        located: Where the patches are, for each output of one store: only rows differ.
        output: One of these outputs.
        cell: The first sample of the cell of each patch.
    """
    order = np.lexsort((cell, located[0].leaf))
    leaf, corner = located[0].leaf[order], located[0].corner[order]
    rows = np.concatenate([found.rows.reshape(len(cell), -1) for found in located], axis=1)[order]
    begins = np.append(0, np.flatnonzero((np.diff(leaf) != 0) | (np.diff(cell[order]) != 0)) + 1)
    low = np.minimum.reduceat(corner, begins).tolist()
    high = (np.maximum.reduceat(corner, begins) + output.inner).tolist()
    first = np.minimum.reduceat(rows.min(axis=1), begins).tolist()
    last = np.maximum.reduceat(rows.max(axis=1), begins).tolist()
    numbers, ends = leaf[begins].tolist(), [*begins[1:].tolist(), len(rows)]
    canvases: dict[tuple[int, tuple[int, ...], tuple[int, ...]], list[Indices]] = {}
    for group, (number, a, b) in enumerate(zip(numbers, first, last, strict=True)):
        chunk = leaves[number].chunks[0]
        wanted = np.array([a, b])  # the ends are enough if they are in one chunk
        if a // chunk != b // chunk:
            wanted = rows[begins[group] : ends[group]].ravel()
        canvases.setdefault((number, tuple(low[group]), tuple(high[group])), []).append(wanted)
    grids = {
        number: None if leaves[number].in_place else leaves[number].chunks[1:]
        for number in set(numbers)
    }
    spans: dict[tuple[int, int, int], list[Span]] = {}
    for (number, *canvas), each in canvases.items():
        chunk, wanted = leaves[number].chunks[0], np.concatenate(each)
        a, b = int(wanted[0]), int(wanted[-1])
        few = len(wanted) == 2 and a // chunk == b // chunk
        for start, stop in [(a, b + 1)] if few else row_ranges(distinct(wanted), chunk):
            same = spans.setdefault((number, start, stop), [])
            _join(same, Span(number, start, stop, *canvas), grids[number])
    return [span for each in spans.values() for span in each]


def _join(spans: list[Span], new: Span, chunks: Sequence[int] | None) -> None:
    """Add a span of the same rows; its canvas is joined with another if fewer chunks are decoded.

    If the same number is decoded, canvases stay separate: a whole chunk is decoded in place.
    If nothing is decoded (``chunks`` is None), they are joined if that takes no more memory.
    """
    if spans:
        size = _chunks_of(new.low, new.high, chunks) + (chunks is None)
        for number, span in enumerate(spans):
            low, high = tuple(map(min, span.low, new.low)), tuple(map(max, span.high, new.high))
            most = _chunks_of(span.low, span.high, chunks) + size
            if _chunks_of(low, high, chunks) < most:
                del spans[number]
                hull = Span(span.leaf, span.start, span.stop, low, high)
                _join(spans, hull, chunks)  # which may now complete a larger one
                return
    spans.append(new)


def _chunks_of(low: Sequence[int], high: Sequence[int], chunks: Sequence[int] | None) -> int:
    """Return how many chunks of one row a canvas touches, or its items if there are no chunks."""
    if chunks is None:
        return prod(map(sub, high, low))
    count = 1
    for first, last, chunk in zip(low, high, chunks, strict=True):
        count *= (last - 1) // chunk - first // chunk + 1
    return count


def distinct(rows: Indices) -> Indices:
    """Return the distinct rows, ascending; without sorting if they are close together."""
    low, high = int(rows.min()), int(rows.max())
    if high - low > 16 * len(rows):
        return np.unique(rows)
    found = np.zeros(high - low + 1, bool)
    found[rows - low] = True
    return np.flatnonzero(found) + low


def row_ranges(rows: Indices, chunk: int) -> list[tuple[int, int]]:
    """Return ranges that hold ascending rows; rows of one chunk are in one range.

    >>> row_ranges(np.array([0, 1, 5, 6, 9, 30]), chunk=4)
    [(0, 2), (5, 7), (9, 10), (30, 31)]
    >>> row_ranges(np.array([0, 1, 5, 6, 9, 30]), chunk=10)
    [(0, 10), (30, 31)]
    """
    before, after = rows[:-1], rows[1:]
    gaps = np.flatnonzero((after != before + 1) & (after // chunk != before // chunk))
    starts, stops = np.append(rows[:1], after[gaps]), np.append(before[gaps], rows[-1:]) + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def read_span(leaf: Leaf, span: Span, out: Rows) -> None:
    """Fill ``out``, of shape ``span.shape``, from storage; only chunks of the canvas are decoded.

    Args:
        leaf: The leaf of the span.
        span: What to read.
        out: The array to fill.
    """
    source, field, (_, start, stop, low, high) = leaf.source, leaf.field, span
    if out.shape[1:] == leaf.shape:
        source.read(start, stop, {field: out})
        return
    part = tuple(map(slice, low, high))
    rows = view_of(source, start, stop)
    if rows is not None:
        out[...] = rows[field][(slice(None), *part)]
    elif hasattr(source, "read_box"):
        source.read_box(field, start, stop, low, high, out)
    else:  # whole rows, a few at a time
        step = max(1, PIECE_BYTES // max(1, leaf.row_bytes))
        whole = np.empty((min(step, stop - start), *leaf.shape), leaf.dtype)
        for first in range(start, stop, step):
            last = min(stop, first + step)
            source.read(first, last, {field: whole[: last - first]})
            out[first - start : last - start] = whole[(slice(last - first), *part)]


# -- where samples are in what was read


def rows_before(spans: Sequence[Span]) -> Indices:
    """Return the number of rows in the spans before each span."""
    lengths: Indices = np.array([span.stop - span.start for span in spans])
    return np.cumsum(lengths) - lengths


def row_places(found: Located, spans: Sequence[Span]) -> Indices:
    """Return rows as numbered through spans of whole rows, which ascend by (leaf, start)."""
    leaf, start, stop = np.array([span[:3] for span in spans]).T
    begin = rows_before(spans)
    if leaf[0] == leaf[-1]:
        at = np.searchsorted(start, found.rows, side="right") - 1
    else:  # one number for leaf and row, so that both are found at once
        most = int(max(stop.max(), found.rows.max())) + 1
        key = found.leaf.reshape(-1, *[1] * (found.rows.ndim - 1)) * most + found.rows
        at = np.searchsorted(leaf * most + start, key, side="right") - 1
    return np.asarray(found.rows + (begin - start)[at])


def canvas_places(found: Located, output: Output, spans: Sequence[Span]) -> Indices:
    """Return rows as numbered through the canvases, for each patch in those that hold it."""
    leaf, start, stop = np.array([span[:3] for span in spans]).T
    low, high = np.array([span.low for span in spans]), np.array([span.high for span in spans])
    begin, rows = rows_before(spans), found.rows.reshape(len(found.leaf), -1)
    index = np.empty(rows.shape, np.int64)
    most = max(1, COMPARED // (len(spans) * rows.shape[1]))
    for first in range(0, len(rows), most):  # a few patches with all canvases at a time
        here = slice(first, first + most)
        holds = found.leaf[here, None] == leaf
        for axis, size in enumerate(output.inner):
            corner = found.corner[here, axis, None]
            holds &= (corner >= low[:, axis]) & (corner + size <= high[:, axis])
        row = rows[here, :, None]
        at = (holds[:, None] & (row >= start) & (row < stop)).argmax(axis=2)
        index[here] = rows[here] + (begin - start)[at]
    return index.reshape(found.rows.shape)


def gather_patches(
    out: Rows, places: Places, output: Output, spans: Sequence[Span], canvases: Sequence[Rows]
) -> None:
    """Copy each patch from the canvases that hold its rows.

    Args:
        out: One item for each sample.
        places: Where the samples are.
        output: The output that the patches are of.
        spans: What was read.
        canvases: The array of each span.
    """
    begin = rows_before(spans)
    low = np.array([span.low for span in spans])
    steps = len(output.steps)
    index = places.index.reshape(len(out), -1)
    target = out.reshape(len(out), -1, *output.inner) if steps else out[:, None]
    which = np.searchsorted(begin, index, side="right") - 1
    same = (which == which[:, :1]).all(axis=1)
    rows = index - begin[which]
    for i in range(len(out)):
        for at in [slice(None)] if same[i] else range(index.shape[1]):
            span = int(which[i, at][0] if same[i] else which[i, at])
            corner = places.corner[i] - low[span]
            part = map(slice, corner.tolist(), (corner + output.inner).tolist())
            key: tuple[Any, ...] = (rows[i, at], *part)
            target[i, at] = canvases[span][key]


# -- whole samples, for any loader


def fill(
    leaves: Sequence[Leaf],
    outputs: Mapping[str, Output],
    located: Mapping[str, Located],
    cells: Borders,
    samples: Indices,
    out: Arrays,
) -> None:
    """Read samples into ``out``; each storage chunk is decoded once."""
    if not len(samples):
        return
    reads = Reads()
    rest: dict[int, list[tuple[Rows, slice | Indices, Indices]]] = {}
    cut: dict[int, list[str]] = {}
    for name, rows in out.items():
        output, found = outputs[name], located[name]
        if output.cut:
            cut.setdefault(output.store, []).append(name)
            continue
        for number, here in by_leaf(found.leaf):
            wanted, leaf, target = found.rows[here], leaves[number], rows[here]
            first, last = int(wanted.flat[0]), int(wanted.flat[-1])
            inorder = last - first + 1 == wanted.size and (np.diff(wanted.ravel()) == 1).all()
            direct = isinstance(here, slice) and (not output.steps or target.flags.c_contiguous)
            if inorder and direct:  # straight into the output, with other fields of the source
                reads.add(leaf, first, last + 1, target.reshape(wanted.size, *output.inner))
            else:
                rest.setdefault(number, []).append((rows, here, wanted))
    reads.run()
    _read_once(leaves, rest)
    for names in cut.values():
        each = [located[name] for name in names]
        spans = canvas_spans(leaves, each, outputs[names[0]], cells.around(samples)[0])
        canvases = [np.empty(span.shape, outputs[names[0]].dtype) for span in spans]
        for span, canvas in zip(spans, canvases, strict=True):
            read_span(leaves[span.leaf], span, canvas)
        for name, found in zip(names, each, strict=True):
            places = Places(canvas_places(found, outputs[name], spans), found.corner)
            gather_patches(out[name], places, outputs[name], spans, canvases)


class Reads:
    """Ranges of rows to read; the fields of a source with the same range are read together."""

    def __init__(self) -> None:
        self._asked: dict[tuple[int, int, int], list[tuple[Source, dict[str, Rows]]]] = {}

    def add(self, leaf: Leaf, start: int, stop: int, out: Rows) -> None:
        """Read rows ``start:stop`` of a leaf into ``out``."""
        calls = self._asked.setdefault((id(leaf.source), start, stop), [])
        for _, together in calls:
            if leaf.field not in together:
                together[leaf.field] = out
                return
        calls.append((leaf.source, {leaf.field: out}))

    def run(self) -> None:
        """Read all ranges that were added."""
        for (_, start, stop), calls in self._asked.items():
            for source, out in calls:
                source.read(start, stop, out)


def by_leaf(leaf: Indices) -> Iterator[tuple[int, slice | Indices]]:
    """Yield the number of each leaf and the positions of its samples; a slice if possible."""
    borders = np.flatnonzero(np.diff(leaf)) + 1
    starts = np.append(0, borders)
    if len(set(leaf[starts].tolist())) == len(starts):
        for start, stop in pairwise([*starts.tolist(), len(leaf)]):
            yield int(leaf[start]), slice(start, stop)
        return
    for number in np.unique(leaf).tolist():
        yield number, np.flatnonzero(leaf == number)


def _read_once(
    leaves: Sequence[Leaf], wanted: Mapping[int, list[tuple[Rows, slice | Indices, Indices]]]
) -> None:
    """Read each wanted row of each leaf once, then copy it to all samples that have it."""
    together: dict[tuple[int, bytes], list[int]] = {}  # fields of one source with the same rows
    rows = {}
    for number, each in wanted.items():
        rows[number] = distinct(np.concatenate([w.ravel() for _, _, w in each]))
        together.setdefault((id(leaves[number].source), rows[number].tobytes()), []).append(number)
    for numbers in together.values():
        source, needed = leaves[numbers[0]].source, rows[numbers[0]]
        held = {
            leaves[n].field: np.empty((len(needed), *leaves[n].shape), leaves[n].dtype)
            for n in numbers
        }
        first, last = int(needed[0]), int(needed[-1])
        consecutive = last - first + 1 == len(needed)
        if consecutive:
            source.read(first, last + 1, held)
        else:
            source.take(needed, held)
        for number in numbers:
            for out, here, which in wanted[number]:
                index = which - first if consecutive else np.searchsorted(needed, which)
                if isinstance(here, slice):
                    np.take(held[leaves[number].field], index, axis=0, out=out[here], mode="clip")
                else:
                    out[here] = held[leaves[number].field][index]
