"""The arithmetic of the verbs: from samples of a composed source to boxes of stored arrays.

Nothing is read here. Each class is one verb; it numbers its samples, and finds where they are
stored through the layout that it was applied to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from penstock.errors import PlanError
from penstock.fingerprints import digest
from penstock.order.permutation import derive_key
from penstock.order.subset import Kept, Ranges
from penstock.registry import did_you_mean
from penstock.sources.boxes import MOST_BORDERS, Borders, Leaf, Located, Output
from penstock.sources.contract import Indices, Source, varies

Offsets: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]
Sizes: TypeAlias = Mapping[str, int] | Sequence[int]


class Draw(NamedTuple):
    """What the corners of random patches depend on, besides the sample.

    Args:
        seed: The loader's seed.
        epoch: The epoch.
        share: None for random corners; 0 or 1 for the first or last corner that could be drawn.
    """

    seed: int = 0
    epoch: int = 0
    share: int | None = None


class Layout(ABC):
    """Where the samples of a source are stored.

    Attributes:
        leaves: The stored arrays.
        outputs: What a sample consists of, by field name.
        runs: Borders ``[0, ..., len]`` of the stretches without a seam; windows stay inside one.
        cells: Borders between samples that begin in different storage chunks.
        tiled: Whether samples are numbered by tiles: the next sample is not the next row.
        shared: Whether samples have rows in common: windows or tiles that overlap.
        scattered: Whether samples are scattered over the parent: reads have no long pieces.
    """

    leaves: tuple[Leaf, ...]
    outputs: dict[str, Output]
    runs: Indices
    cells: Borders
    tiled: bool = False
    shared: bool = False
    scattered: bool = False

    def __len__(self) -> int:
        return int(self.runs[-1])

    @abstractmethod
    def locate(self, name: str, samples: Indices, draw: Draw) -> Located:
        """Return where output ``name`` of these samples is stored."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return an identity of the data and of what the verbs did."""

    @abstractmethod
    def __repr__(self) -> str: ...

    def windows(self, offsets: Offsets, stride: int) -> Layout:
        """Return the layout of windows over this one."""
        if self.tiled:
            raise PlanError(
                "windows cannot be made of selected or zipped patches, whose next sample is "
                "another tile: call select or zip_sources first, then windows, then patches"
            )
        return Windows(self, offsets, stride)

    def patches(self, sizes: Sizes, stride: Sizes | None, random: bool) -> Layout:
        """Return the layout of patches of this one."""
        if self.tiled:
            raise PlanError("patches cannot be made of patches: pass the smaller sizes at once")
        if varies(self):  # a part may be read when no pass is known any more
            raise PlanError(
                "patches cannot be made of samples that differ between passes: pack without seed"
            )
        return Patches(self, sizes, stride, random)


class Stored(Layout):
    """The rows of a source that is not composed.

    Args:
        source: The source.
        seams: The positions where a row does not continue the one before it.
        dims: The names of the axes of a row, by field.
        chunks: The shape that is decoded together, by field: rows first.
    """

    def __init__(
        self,
        source: Source,
        seams: Sequence[int],
        dims: Mapping[str, tuple[str, ...]],
        chunks: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.source, size = source, len(source)
        leaves, self.outputs = [], {}
        for name, field in source.fields.items():
            whole = (max(1, source.block_samples), *field.shape)
            leaves.append(Leaf(source, name, tuple(max(1, n) for n in chunks.get(name, whole))))
            names = dims.get(name) or ("",) * len(field.shape)
            number = (len(leaves) - 1,)
            output = Output(number, (), field.shape, field.dtype, names)
            self.outputs[name] = replace(output, ragged=field.ragged, sparse=field.sparse)
        self.leaves = tuple(leaves)
        self.runs = Borders.at(seams, size).array()
        widest = max(self.leaves, key=lambda leaf: leaf.row_bytes)
        self.cells = Borders.every(size, min(widest.chunks[0], max(1, size)))

    def locate(self, name: str, samples: Indices, draw: Draw) -> Located:
        """Return where output ``name`` of these samples is stored."""
        output = self.outputs[name]
        leaf = np.full(len(samples), output.store, np.int64)
        return Located(leaf, samples, zeros(len(samples), len(output.inner)))

    def fingerprint(self) -> str:
        """Return an identity of the data and of what the verbs did."""
        return self.source.fingerprint()

    def __repr__(self) -> str:
        return repr(self.source)


class Selected(Layout):
    """Some samples of another layout, in its order; a gap is a seam.

    Args:
        parent: The layout.
        kept: The selected samples.
    """

    def __init__(self, parent: Layout, kept: Kept) -> None:
        self.parent, self.kept = parent, kept
        self.leaves, self.outputs = parent.leaves, parent.outputs
        self.tiled, self.shared = parent.tiled, parent.shared
        self.scattered = not isinstance(kept, Ranges)
        self.cells = self._own_cells(kept) if isinstance(kept, Ranges) else self._counted_cells()

    def __len__(self) -> int:
        return self.kept.count

    @cached_property
    def runs(self) -> Indices:  # type: ignore[override]
        """Borders of the stretches without a seam: 8 bytes each, so only if they are needed."""
        inner = self.kept.rank(self.parent.runs[1:-1])
        return Borders.at(np.concatenate([self.kept.begins(), inner]), len(self)).array()

    def _counted_cells(self) -> Borders:
        """Return borders where the cell of the parent changes, in O(cells)."""
        cells = self.parent.cells
        if len(cells) > MOST_BORDERS:  # only the speed of reads depends on exact borders
            return Borders.every(len(self), cells.typical() * len(self) // cells.size)
        return Borders.at(self.kept.rank(cells.array()), len(self))

    def _own_cells(self, kept: Ranges) -> Borders:
        """Return the same borders as `_counted_cells`, in O(ranges)."""
        cells, inner = self.parent.cells, self.parent.cells.firsts
        if not kept.count:
            return Borders.every(0, 1)
        # ranges that lie in one stretch of the parent's borders each
        at = np.searchsorted(kept.starts, inner, side="right") - 1
        cut = inner[(at >= 0) & (inner > kept.starts[at]) & (inner < kept.stops[at])]
        starts = np.sort(np.concatenate([kept.starts, cut]))
        stops = np.sort(np.concatenate([kept.stops, cut]))
        begins = kept.rank(starts)
        first_cell, second = cells.around(starts)
        last_cell, _ = cells.around(stops - 1)
        other = np.append(True, first_cell[1:] != last_cell[:-1])
        more = second < stops  # the range continues in another cell: there its step is regular
        step = cells.steps[np.searchsorted(cells.firsts, starts[more], side="right") - 1]
        firsts = np.concatenate([begins[other], (begins + second - starts)[more]])
        steps = np.concatenate([np.full(int(other.sum()), kept.count), step])
        order = np.argsort(firsts, kind="stable")
        return Borders(firsts[order], steps[order], kept.count)

    def locate(self, name: str, samples: Indices, draw: Draw) -> Located:
        """Return where output ``name`` of these samples is stored."""
        return self.parent.locate(name, self.kept.select(samples), draw)

    def fingerprint(self) -> str:
        """Return an identity of the data and of what the verbs did."""
        kept = self.kept
        if isinstance(kept, Ranges) and len(kept.starts) == 1:
            return digest(["range", int(kept.starts[0]), kept.count, self.parent.fingerprint()], [])
        return digest(["select", self.parent.fingerprint()], [kept.facts().tobytes()])

    def __repr__(self) -> str:
        return f"{self.parent!r}.select({len(self):,} of {len(self.parent):,} samples)"


class Windows(Layout):
    """Sample i is the parent's samples ``anchor(i) + offsets``, all of them in one run.

    Args:
        parent: The layout.
        offsets: The output of the parent and the offsets, by output name.
        stride: Samples of the parent from one anchor to the next one of the same run.
    """

    def __init__(self, parent: Layout, offsets: Offsets, stride: int) -> None:
        refuse_ragged(parent.outputs, "windows")
        self.parent, self._stride, self.leaves = parent, stride, parent.leaves
        self._asked = {name: (of, list(each)) for name, (of, each) in offsets.items()}
        low = min(o for _, each in offsets.values() for o in each)
        high = max(o for _, each in offsets.values() for o in each)
        self.shared = parent.shared or high - low >= stride
        self._from: dict[str, tuple[str, Indices]] = {}
        self.outputs = {}
        for name, (of, each) in offsets.items():
            output, wanted = parent.outputs[of], np.array(each, np.int64) - low
            if output.static:
                self.outputs[name], wanted = output, np.zeros(1, np.int64)
            else:
                if output.rate < 1:  # at its own rate: the rows it has in that time
                    wanted = slower_offsets(wanted, output.rate.denominator, name)
                pitch = None if output.pitch is None else output.pitch * stride
                steps, rate = (len(wanted), *output.steps), output.rate * stride
                rate = rate if rate.numerator == 1 and rate < 1 else Fraction(1)
                self.outputs[name] = replace(output, steps=steps, pitch=pitch, rate=rate)
            self._from[name] = of, wanted
        counts = np.maximum(0, (np.diff(parent.runs) - (high - low + 1)) // stride + 1)
        self._begins = np.append(0, np.cumsum(counts))  # of each run of the parent
        self.runs = Borders.at(self._begins, int(self._begins[-1])).array()
        self.cells = parent.cells.mapped(
            self._before, len(self), over=stride, seams=parent.runs[1:-1]
        )

    def _before(self, positions: Indices) -> Indices:
        """Return the number of windows whose anchor is before each position of the parent."""
        run = np.searchsorted(self.parent.runs, positions, side="right") - 1
        run = np.minimum(run, len(self._begins) - 2)
        inside = -(-(positions - self.parent.runs[run]) // self._stride)
        return np.asarray(np.minimum(self._begins[run] + inside, self._begins[run + 1]))

    def locate(self, name: str, samples: Indices, draw: Draw) -> Located:
        """Return where output ``name`` of these samples is stored."""
        of, offsets = self._from[name]
        output, pitch = self.outputs[name], self.parent.outputs[of].pitch
        run = np.searchsorted(self._begins, samples, side="right") - 1
        anchors = self.parent.runs[run] + (samples - self._begins[run]) * self._stride
        if output.static:
            return self.parent.locate(of, anchors, draw)
        if pitch is not None:  # rows of a run are regular: look up one of them
            found = self.parent.locate(of, anchors, draw)
            apart = (offsets * pitch).reshape(-1, *[1] * (found.rows.ndim - 1))
            return replace(found, rows=found.rows[:, None] + apart)
        wanted = (anchors[:, None] + offsets).ravel()
        found, each = self.parent.locate(of, wanted, draw), len(offsets)
        rows = found.rows.reshape(len(samples), *output.steps)
        return Located(found.leaf[::each], rows, found.corner[::each])

    def fingerprint(self) -> str:
        """Return an identity of the data and of what the verbs did."""
        return digest(["windows", self._asked, self._stride, self.parent.fingerprint()], [])

    def __repr__(self) -> str:
        steps = {name: list(output.steps) for name, output in self.outputs.items()}
        shown = f"steps={steps}" + (f", stride={self._stride}" if self._stride > 1 else "")
        return f"{self.parent!r}.windows({shown})"


class Patches(Layout):
    """Samples that are each a tile of a sample of the parent.

    They are numbered cell by cell: a cell is a cell of the parent times the tiles whose corners are
    in the same storage chunks; inside a cell, by sample of the parent, then by tile.

    Args:
        parent: The layout.
        sizes: Items along each axis that is cut: by dimension name, or of the last axes.
        stride: Items between tiles; the sizes by default.
        random: Draw each corner from the tile's share of all corners, by (seed, epoch, sample).
    """

    tiled = True

    def __init__(self, parent: Layout, sizes: Sizes, stride: Sizes | None, random: bool) -> None:
        refuse_ragged(parent.outputs, "patches")
        self.parent, self.leaves, self._random = parent, parent.leaves, random
        self._asked = sizes, stride
        self._axes = cut_axes(parent.outputs, sizes)
        widest = max(self._axes, key=lambda name: parent.outputs[name].nbytes)
        output, axes = parent.outputs[widest], self._axes[widest]
        self.size = by_axis("sizes", sizes, output, axes)
        self.step = self.size if stride is None else by_axis("stride", stride, output, axes)
        overlap = any(step < size for step, size in zip(self.step, self.size, strict=True))
        self.shared = parent.shared or overlap
        self.extent = tuple(output.inner[axis] for axis in axes)
        tiled = zip(self.extent, self.size, self.step, strict=True)
        self.counts = [max(0, (extent - size) // step + 1) for extent, size, step in tiled]
        grids = {parent.leaves[number].chunks[1:] for number in output.leaves}
        whole = len(grids) != 1  # files with different chunks: all tiles of a row are one cell
        chunks = output.inner if whole else next(iter(grids))
        self._groups = [  # by axis: borders between tiles whose corners are in different chunks
            Borders.at(np.flatnonzero(np.diff(np.arange(count) * step // chunks[axis])) + 1, count)
            for count, step, axis in zip(self.counts, self.step, axes, strict=True)
        ]
        self.outputs = dict(parent.outputs)
        for name, positions in self._axes.items():
            inner = list(parent.outputs[name].inner)
            for axis, size in zip(positions, self.size, strict=True):
                inner[axis] = size
            self.outputs[name] = replace(parent.outputs[name], inner=tuple(inner), cut=True)
        for name, each in self.outputs.items():
            self.outputs[name] = replace(each, pitch=0 if each.static else None)
        total = len(parent) * prod(self.counts)
        self.runs = Borders.at([], total).array()  # nothing asks a tiled layout for its runs
        self.cells = self._own_cells()

    def _own_cells(self) -> Borders:
        """Return the borders of cells: stretches where all groups of tiles have one size."""
        cells, tiles = self.parent.cells, prod(self.counts)
        sizes = [np.diff(group.array()).tolist() for group in self._groups]
        groups = np.array([prod(each) for each in product(*sizes)], np.int64)
        if not len(self):
            return Borders.every(0, 1)
        if len(set(groups.tolist())) == 1:  # whole cells of the parent, then its shorter last one
            ends = np.append(cells.firsts[1:], cells.size)
            rest = (ends - cells.firsts) % cells.steps
            firsts = np.concatenate([cells.firsts, (ends - rest)[rest > 0]])
            steps = np.concatenate([cells.steps, rest[rest > 0]])
            keep = np.concatenate(
                [cells.firsts < ends - rest, np.ones(int((rest > 0).sum()), bool)]
            )
            order = np.argsort(firsts[keep], kind="stable")
            firsts, steps = firsts[keep][order] * tiles, steps[keep][order] * int(groups[0])
            return Borders(firsts, steps, len(self))
        if len(cells) * len(groups) > MOST_BORDERS:
            return cells.mapped(lambda at: at * tiles, len(self), times=tiles)
        lengths = np.multiply.outer(np.diff(cells.array()), groups).ravel()
        return Borders.at(np.cumsum(lengths), len(self))

    def windows(self, offsets: Offsets, stride: int) -> Layout:
        """Return the same tiles over time: windows first, then patches of them."""
        return Patches(self.parent.windows(offsets, stride), *self._asked, self._random)

    def tiles(self, samples: Indices) -> tuple[Indices, list[Indices]]:
        """Return the parent's sample, and the number of the tile along each axis."""
        later = prod(self.counts)
        begin, end = self.parent.cells.around(samples // max(1, later))
        rest, weight = samples - begin * later, end - begin
        firsts, sizes = [begin], [weight]
        for count, groups in zip(self.counts, self._groups, strict=True):
            later //= max(1, count)
            begin, end = groups.around(rest // (weight * later))
            rest = rest - begin * weight * later
            firsts.append(begin)
            sizes.append(end - begin)
            weight = weight * sizes[-1]
        numbers = []
        for begin, size in zip(reversed(firsts), reversed(sizes), strict=True):
            numbers.append(begin + rest % size)
            rest = rest // size
        return numbers[-1], numbers[-2::-1]

    def locate(self, name: str, samples: Indices, draw: Draw) -> Located:
        """Return where output ``name`` of these samples is stored."""
        anchors, tiles = self.tiles(samples)
        found = self.parent.locate(name, anchors, draw)
        if name not in self._axes:
            return found
        corner = zeros(len(samples), len(self.outputs[name].inner))
        for number, (axis, tile) in enumerate(zip(self._axes[name], tiles, strict=True)):
            if self._random:
                corner[:, axis] = self._drawn(number, tile, samples, draw)
            else:
                corner[:, axis] = tile * self.step[number]
        return replace(found, corner=corner)

    def _drawn(self, number: int, tile: Indices, samples: Indices, draw: Draw) -> Indices:
        """Return corners from each tile's own share of all corners: together they are uniform."""
        corners, count = self.extent[number] - self.size[number] + 1, self.counts[number]
        low = tile * corners // count
        wide = np.maximum(1, (tile + 1) * corners // count - low).astype(np.uint64)
        if draw.share is not None:
            return np.asarray(low + draw.share * (wide.astype(np.int64) - 1))
        keys = np.asarray(derive_key(draw.seed, "patch", draw.epoch, number, samples))
        return np.asarray(low + (keys % wide).astype(np.int64))

    def fingerprint(self) -> str:
        """Return an identity of the data and of what the verbs did."""
        facts = ["patches", self.size, self.step, self._random, self._axes]
        return digest([*facts, self.parent.fingerprint()], [])

    def __repr__(self) -> str:
        left = [e - ((n - 1) * t + s if n else 0) for e, n, t, s in self._per_axis()]
        shown = f"{self.size}" + (f", stride={self.step}" if self.step != self.size else "")
        shown += ", random=True" if self._random else ""
        if not all(self.counts):
            shown += f"; none fits into {self.extent}"
        elif any(left) and not self._random:
            shown += f"; the last {tuple(left)} items of {self.extent} are in no patch"
        return f"{self.parent!r}.patches({shown})"

    def _per_axis(self) -> list[tuple[int, int, int, int]]:
        return list(zip(self.extent, self.counts, self.step, self.size, strict=True))


# -- small arithmetic


def zeros(*shape: int) -> Indices:
    """Return zeros of this shape."""
    return np.zeros(shape, np.int64)


def refuse_ragged(outputs: Mapping[str, Output], what: str) -> None:
    """Raise a `PlanError` if an output is ragged: ``what`` needs samples of one size."""
    for name in (name for name, output in outputs.items() if output.ragged):
        raise PlanError(
            f"field {name!r} is ragged, its samples have no common size: {what} need fields of one "
            "size; leave it out with open_source(..., fields=[...]), or use pack for tokens"
        )


def slower_offsets(offsets: Indices, every: int, name: str) -> Indices:
    """Return the offsets of a field with one row for ``every`` samples: one of each group."""
    if not np.array_equal(offsets, np.arange(offsets[0], offsets[0] + len(offsets))):
        return offsets
    if len(offsets) % every:
        raise PlanError(
            f"a window of {len(offsets)} samples does not have a whole number of rows of {name!r}, "
            f"which has one for {every} samples: choose a multiple of {every}"
        )
    return offsets[::every]


def cut_axes(outputs: Mapping[str, Output], sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the axes of ``inner`` that are cut, for each output that has them."""
    found = {}
    if isinstance(sizes, Mapping):
        known = dict.fromkeys(dim for output in outputs.values() for dim in output.dims if dim)
        for dim in (dim for dim in sizes if known and dim not in known):
            raise PlanError(
                f"no field has the dimension {dim!r} of sizes={sizes!r}{did_you_mean(dim, known)}"
            )
    order: list[str] = []  # the named dimensions, as the first field that has them orders them
    for name, output in outputs.items():
        if isinstance(sizes, Mapping):
            has = [dim for dim in output.dims if dim in sizes]
            if has and len(has) < len(sizes):
                raise PlanError(
                    f"field {name!r} has the dimensions {list(output.dims)}, only some of "
                    f"{list(sizes)}: cut fields with the same dimensions, or zip patches of each"
                )
            order = order or has
            axes = tuple(output.dims.index(dim) for dim in order) if has else ()
        else:
            axes = tuple(range(len(output.inner) - len(sizes), len(output.inner)))
        if axes and min(axes) >= 0:
            found[name] = axes
    shapes = {name: list(output.inner) for name, output in outputs.items()}
    if not found:
        dims = {name: list(output.dims) for name, output in outputs.items()}
        raise PlanError(
            f"no field has the axes of sizes={sizes!r}: samples have shapes {shapes} and "
            f"dimensions {dims}; name dimensions, or pass a tuple for the last axes"
        )
    extents = {tuple(outputs[name].inner[axis] for axis in axes) for name, axes in found.items()}
    if len(extents) > 1:
        raise PlanError(
            f"patches need fields of one extent along {sizes!r}, got shapes {shapes}: cut each "
            "with its own patches and zip them"
        )
    return found


def by_axis(argument: str, given: Sizes, output: Output, axes: Sequence[int]) -> tuple[int, ...]:
    """Return a number for each axis that is cut."""
    if not isinstance(given, Mapping):
        found = tuple(given)
    else:
        found = tuple(given.get(output.dims[axis], 0) for axis in axes)
    if len(found) != len(axes) or len(found) != len(given) or min(found) < 1:
        raise PlanError(
            f"{argument} of patches must be at least 1 for each of {len(axes)} axes, got {given!r}"
        )
    return found
