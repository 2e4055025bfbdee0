"""The base class of Penstock's own sources, and what its verbs return.

`BaseSource` checks every request before a subclass sees it; its verbs return a `ComposedSource`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import flag, whole_number
from penstock.errors import PlanError, SourceError
from penstock.fingerprints import digest, field_facts
from penstock.sources.assembly import Reads, canvas_places, fill, row_places, store_spans
from penstock.sources.boxes import Leaf, Located, Places, Span
from penstock.sources.contract import (
    Arrays,
    Field,
    Indices,
    Rows,
    Source,
    check_range,
    checked_buffers,
    checked_indices,
    checked_offsets,
    checked_sizes,
    most_in_flight,
    sampled_rows,
    samples_per_block,
    seams_of,
    selected,
    view_of,
)
from penstock.sources.ragged_rows import (
    items_of,
    lengths_of,
    located_offsets,
    new_buffers,
    ragged_bytes,
    ragged_fields,
    take_by_blocks,
    take_located,
)
from penstock.sources.verbs import Draw, Layout, Selected, Sizes, Stored

if TYPE_CHECKING:
    from penstock.sources.statistics import Statistics

SHORT_PIECE = 64  # samples: shorter ones are gathered instead of read one by one


class BaseSource(ABC):
    """Base class of Penstock's own sources.

    It checks ranges, indices and buffers, then calls `_read`, `_take` and `_view`. Subclasses
    implement `_read`, and the others if they can do better than the default.

    Args:
        length: The number of samples.
        fields: Shape and dtype of one sample, by field name.
        name: What is read, for messages.
        offsets: By ragged field: where each sample's items begin, and the end of the last.

    Attributes:
        seams: Positions where a sample does not continue the one before it.
        dims: The names of the axes of a sample, by field; empty where they are not known.
        chunks: The shape that is decoded together, by field: samples, then the axes of a sample.
        in_flight: Simultaneous reads that remote storage needs; None for local storage.
    """

    seams: Sequence[int] = ()
    dims: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    chunks: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    in_flight: int | None = None

    def __init__(
        self,
        length: int,
        fields: Mapping[str, Field],
        name: str = "",
        offsets: Mapping[str, Indices] | None = None,
    ) -> None:
        self._length, self._fields, self._name = length, dict(fields), name
        self._offsets = dict(offsets or {})

    @property
    def fields(self) -> Mapping[str, Field]:
        """Shape and dtype of one sample, by field name."""
        return self._fields

    @property
    def block_samples(self) -> int:
        """Samples that are cheapest to read together; about a megabyte by default."""
        return samples_per_block(self._length, self._fields, ragged_bytes(self))

    def offsets(self, name: str) -> Indices:
        """Return where each sample's items of a ragged field begin, and the end of the last.

        Args:
            name: The field.
        """
        if name not in self._offsets:
            raise PlanError(f"field {name!r} of {self!r} is not ragged: its samples have one size")
        return self._offsets[name]

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        name = f"{self._name!r}, " if self._name else ""
        fields = f" of {list(self.fields)}" if list(self.fields) != [""] else ""
        return f"{type(self).__name__}({name}{len(self)} samples{fields})"

    def fingerprint(self) -> str:
        """Return an identity of the data: shapes, dtypes, and the values of a few samples."""

        def rows(start: int, stop: int, name: str) -> Rows:
            out = new_buffers(self, [name], start, stop)
            self.read(start, stop, out)
            return out[name]

        lists = ragged_fields(self, self._fields)
        facts = [len(self), field_facts(self._fields), *(int(self.offsets(n)[-1]) for n in lists)]
        few = samples_per_block(self._length, self._fields, ragged_bytes(self))
        return digest(facts, sampled_rows(self._length, few, rows, self._fields))

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``, for names in ``out``.

        Args:
            start: The first sample.
            stop: The end of the range.
            out: A buffer for each field to read, by name: samples first; items, if it is ragged.
        """
        check_range(self._length, start, stop)
        items = {name: items_of(self, name, start, stop) for name in ragged_fields(self, out)}
        self._read(start, stop, checked_buffers(self._fields, out, stop - start, items))

    def take(self, indices: Indices, out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples, for each name in ``out``.

        Args:
            indices: Numbers of samples, in any order.
            out: A buffer for each field to read, by name: samples first.
        """
        chosen = checked_indices(self._length, indices)
        items = {n: int(lengths_of(self, n, chosen).sum()) for n in ragged_fields(self, out)}
        self._take(chosen, checked_buffers(self._fields, out, len(chosen), items))

    def view(self, start: int, stop: int) -> Arrays | None:
        """Return samples ``start:stop`` in place and read-only, or None if impossible.

        Args:
            start: The first sample.
            stop: The end of the range.
        """
        check_range(self._length, start, stop)
        return self._view(start, stop)

    # -- verbs

    def select(self, indices_or_mask: npt.ArrayLike | range | slice) -> ComposedSource:
        """Return some of the samples, in storage order; a gap between them is a seam.

        Args:
            indices_or_mask: Indices (each once, in any order), a mask with one bool for each
                sample, a range or a slice.

        >>> from penstock.sources.memory import MemorySource
        >>> part = MemorySource(np.arange(10)).select([7, 2, 3])
        >>> part.view(0, 2)[""].tolist(), part.seams
        ([2, 3], [2])
        """
        kept = selected("indices_or_mask", indices_or_mask, len(self))
        return ComposedSource(Selected(layout_of(self), kept))

    def windows(
        self,
        length: int | None = None,
        *,
        offsets: Sequence[int] | Mapping[str, Any] | None = None,
        stride: int = 1,
    ) -> ComposedSource:
        """Return samples of several rows each; no window crosses a seam.

        Args:
            length: Consecutive rows of a sample. Pass this or ``offsets``.
            offsets: Rows of a sample, counted from any common row: ``[0, 1, 6]`` for every field,
                ``{"x": [-1, 0], "y": [6]}`` by field, or ``{"y": ("t2m", [6])}`` for output
                "y" of field "t2m".
            stride: Rows from one window to the next, counted from each seam.

        >>> from penstock.sources.memory import MemorySource
        >>> pairs = MemorySource(np.arange(10)).windows(offsets={"x": [-1, 0], "y": [6]})
        >>> len(pairs), {name: field.shape for name, field in pairs.fields.items()}
        (3, {'x': (2,), 'y': (1,)})
        """
        layout = layout_of(self)
        named = checked_offsets(layout.outputs, length, offsets)
        return ComposedSource(layout.windows(named, whole_number("stride", stride, minimum=1)))

    def patches(
        self, sizes: Sizes, *, stride: Sizes | int | None = None, random: bool = False
    ) -> ComposedSource:
        """Return parts of the samples: all tiles of a grid, or a random part for each tile.

        A remainder at the end of an axis that is too short for another tile is in no patch;
        ``repr`` shows its size. Fields that have none of the axes (labels) stay whole. Patches
        are numbered so that those of the same storage chunks are consecutive.

        Args:
            sizes: Items along each axis: ``{"y": 256, "x": 256}`` by dimension name, or a tuple
                for the last axes.
            stride: Items between tiles, in the same form or one number; ``sizes`` by default.
            random: Draw the corner of each patch from its tile's share of all corners, by (seed,
                epoch, sample): the same for any number of threads, workers and ranks.

        >>> from penstock.sources.memory import MemorySource
        >>> patches = MemorySource(np.zeros((10, 64, 64))).patches((32, 32))
        >>> len(patches), patches.fields[""].shape
        (40, (32, 32))
        """
        layout, sizes = layout_of(self), checked_sizes("sizes", sizes)
        stride = None if stride is None else checked_sizes("stride", stride, sizes)
        return ComposedSource(layout.patches(sizes, stride, flag("random", random)))

    def split(
        self,
        parts: Mapping[str, float],
        *,
        by: str = "random",
        groups: npt.ArrayLike | str | None = None,
        seed: int = 42,
    ) -> dict[str, ComposedSource]:
        """Return disjoint parts that together have all samples, each in storage order.

        Call it before `windows`: windows made earlier share rows with windows of other parts.

        Args:
            parts: Shares that add up to 1 (``{"train": 0.8, "val": 0.2}``), or numbers of samples.
            by: "random": whole storage chunks are shuffled, so that each part still streams
                well; "time": the first samples are the first part; "group": no group is in two
                parts, and sizes are as close as whole groups allow.
            groups: The group of each sample, or the field that has it; by default every stretch
                between two seams (a file, a session) is a group.
            seed: Seed of the shuffle.

        >>> from penstock.sources.memory import MemorySource
        >>> parts = MemorySource(np.arange(10)).split({"train": 0.8, "val": 0.2}, by="time")
        >>> {name: len(part) for name, part in parts.items()}
        {'train': 8, 'val': 2}
        """
        from penstock.sources.split import split_samples  # here: few programs split

        layout = layout_of(self)
        kept = split_samples(self, layout, parts, by, groups, seed)
        return {name: ComposedSource(Selected(layout, each)) for name, each in kept.items()}

    def statistics(
        self, *, per: int | str | None = None, progress: bool = True
    ) -> dict[str, Statistics]:
        """Return mean, deviation, extremes and counts of each numeric field, in one pass.

        NaN is counted and left out. Sums are in float64, and a mean far from 0 costs no precision.

        Args:
            per: An axis of a sample, by number or dimension name, to get arrays with one item
                for each index of it; fields without that axis get single numbers.
            progress: Show a progress bar if standard error is a terminal.

        >>> from penstock.sources.memory import MemorySource
        >>> found = MemorySource(np.array([1.0, np.nan, 3.0])).statistics()[""]
        >>> found.mean, found.std, found.count, found.nans
        (2.0, 1.0, 2, 1)
        """
        from penstock.sources.statistics import statistics_of  # here: few programs need them

        return statistics_of(self, self.dims, per, progress)

    # -- what subclasses implement

    @abstractmethod
    def _read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out``, whose buffers have exactly ``stop - start`` rows."""

    def _take(self, indices: Indices, out: Arrays) -> None:
        """Fill ``out``, whose buffers have ``len(indices)`` rows; each block is read once."""
        take_by_blocks(self, indices, out, self.block_samples)

    def _view(self, start: int, stop: int) -> Arrays | None:
        return None


class ComposedSource(BaseSource):
    """The source that verbs return: samples made of boxes of stored arrays.

    Any loader can use it as a plain source; then `read` and `take` return whole samples, and each
    storage chunk is decoded once per call. A reader that keeps rows in its own memory uses:

    1. ``here = source.drawn(seed, epoch)``: the source with the random patches of one epoch.
    2. ``spans = here.needs(samples)``: what to read for a block of samples, each row once.
    3. `read_span` for each of them, into memory of the shape ``span.shape``.
    4. ``here.places(samples, spans)``: where each sample of a batch is in that memory.

    Args:
        layout: Where the samples are stored.

    Attributes:
        leaves: The stored arrays, each with its own chunks; `Output.leaves` are numbers of these.
        outputs: What a sample consists of, by field name.
        cells: Borders between samples that begin in different storage chunks.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self._draw = layout, Draw()
        self.leaves, self.outputs, self.cells = layout.leaves, layout.outputs, layout.cells
        named = {name: each for name, each in layout.outputs.items() if any(each.dims)}
        self.dims = {name: ("",) * len(each.steps) + each.dims for name, each in named.items()}
        fields = {name: each.field for name, each in layout.outputs.items()}
        super().__init__(len(layout), fields)
        outputs = layout.outputs.values()
        plain = all(not (o.steps or o.ragged) and o.pitch == 1 for o in outputs)
        self._plain = plain and not layout.scattered
        self.in_flight = most_in_flight(leaf.source for leaf in self.leaves)

    @property
    def seams(self) -> list[int]:  # type: ignore[override]
        """Positions where a sample does not continue the one before it."""
        return self.layout.runs[1:-1].tolist()  # type: ignore[no-any-return]

    @property
    def block_samples(self) -> int:
        """The samples of a typical cell."""
        return self.cells.typical()

    def offsets(self, name: str) -> Indices:
        """Return where each sample's items of a ragged field begin, and the end of the last.

        Args:
            name: The field.
        """
        if name in self._fields and self._fields[name].ragged and name not in self._offsets:
            found = self.layout.locate(name, np.arange(len(self)), self._draw)
            self._offsets[name] = located_offsets(self.leaves, found)
        return super().offsets(name)

    def fingerprint(self) -> str:
        """Return an identity of the data and of what the verbs did."""
        return self.layout.fingerprint()

    def __repr__(self) -> str:
        return repr(self.layout)

    # -- where samples are

    def drawn(self, seed: int, epoch: int) -> ComposedSource:
        """Return a copy with the random patches of this seed and epoch; by default both are 0.

        Args:
            seed: The loader's seed.
            epoch: The epoch.
        """
        drawn = copy(self)
        drawn._draw = Draw(seed, epoch)
        return drawn

    def locate(self, samples: Indices) -> dict[str, Located]:
        """Return where each output of these samples is stored.

        Args:
            samples: Numbers of samples, in any order, as int64.
        """
        return {name: self.layout.locate(name, samples, self._draw) for name in self.outputs}

    def needs(
        self, samples: Indices, located: Mapping[str, Located] | None = None
    ) -> dict[int, list[Span]]:
        """Return what to read for these samples, by `Output.store`: few spans, no row twice.

        Needed rows of the same chunk, and neighbours, are one span, so that reading the spans one
        by one decodes no chunk twice. The spans of a store without patches are whole rows, in
        ascending order of (leaf, start). Those of patches are canvases: the rows and the hull of
        the patches of one cell, joined where that decodes no more chunks.

        Args:
            samples: Numbers of samples: usually a block of consecutive ones.
            located: What `locate` returns for them, if known.
        """
        found, cell = located or self.locate(samples), self.cells.around(samples)[0]
        return store_spans(self.leaves, self.outputs, found, cell)

    def widest_needs(self, samples: Indices) -> dict[int, list[Span]]:
        """Return what to read for these samples, whichever corners are drawn for random patches.

        Args:
            samples: Numbers of samples: usually a block of consecutive ones.
        """
        locate, ends = self.layout.locate, (Draw(share=0), Draw(share=1))
        low, high = ({name: locate(name, samples, end) for name in self.outputs} for end in ends)
        both = {name: found.joined(high[name]) for name, found in low.items()}
        cell = self.cells.around(np.tile(samples, 2))[0]
        return store_spans(self.leaves, self.outputs, both, cell)

    def places(
        self,
        samples: Indices,
        spans: Mapping[int, Sequence[Span]],
        located: Mapping[str, Located] | None = None,
    ) -> dict[str, Places]:
        """Return where these samples are in spans that hold them, by field.

        Args:
            samples: Numbers of samples, such as those of one batch.
            spans: By store: a result of `needs`.
            located: What `locate` returns for them, if it is known.
        """
        places = {}
        for name, found in (located or self.locate(samples)).items():
            output, held = self.outputs[name], spans[self.outputs[name].store]
            index = canvas_places(found, output, held) if output.cut else row_places(found, held)
            places[name] = Places(index, found.corner)
        return places

    # -- whole samples

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        pieces = self._pieces(start, stop)
        if pieces is None:
            self._take(np.arange(start, stop), out)
            return
        reads = Reads()
        for name, rows in out.items():
            for first, last in pieces:
                leaf, row = self._row(name, first)
                reads.add(leaf, row, row + last - first, rows[first - start : last - start])
        reads.run()

    def _take(self, indices: Indices, out: Arrays) -> None:
        located = {name: self.layout.locate(name, indices, self._draw) for name in out}
        for name in ragged_fields(self, out):
            take_located(self.leaves, located[name], out[name])
        out = {name: rows for name, rows in out.items() if not self._fields[name].ragged}
        fill(self.leaves, self.outputs, located, self.cells, indices, out)

    def _view(self, start: int, stop: int) -> Arrays | None:
        pieces = self._pieces(start, stop)
        if pieces is None or len(pieces) != 1:
            return None
        views = {}
        for name in self.outputs:
            leaf, row = self._row(name, start)
            view = view_of(leaf.source, row, row + stop - start)
            if view is None:
                return None
            views[name] = view[leaf.field]
        return views

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int]] | None:
        """Return the parts of ``start:stop`` whose samples are consecutive rows of one leaf each.

        None if a sample is not one row, or if there are many short parts.
        """
        if not self._plain or start == stop:
            return None
        runs = self.layout.runs
        first, last = np.searchsorted(runs, [start, stop - 1], side="right").tolist()
        if last - first > (stop - start) // SHORT_PIECE:
            return None
        return list(pairwise([start, *runs[first:last].tolist(), stop]))

    def _row(self, name: str, sample: int) -> tuple[Leaf, int]:
        found = self.layout.locate(name, np.array([sample]), self._draw)
        return self.leaves[int(found.leaf[0])], int(found.rows[0])


def composed(source: Source) -> ComposedSource:
    """Return any source as a `ComposedSource`, a plain one as the rows it stores."""
    return source if isinstance(source, ComposedSource) else ComposedSource(layout_of(source))


def layout_of(source: Source) -> Layout:
    """Return where the samples of any source are stored."""
    if isinstance(source, ComposedSource):
        return source.layout
    if not isinstance(source, Source):
        raise SourceError(f"{type(source).__name__} is not a source: convert it with open_source")
    dims, chunks = getattr(source, "dims", {}), getattr(source, "chunks", {})
    return Stored(source, seams_of(source), dims, chunks)
