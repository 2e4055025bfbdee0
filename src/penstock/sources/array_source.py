"""Sources made of arrays: which arrays of a store are fields, and one reader for each field."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from penstock.arguments import whole_number
from penstock.errors import PlanError, SourceError
from penstock.fingerprints import digest
from penstock.registry import did_you_mean
from penstock.sources.base import BaseSource
from penstock.sources.cf import Attributes, Decoding, decoding_of
from penstock.sources.contract import Arrays, Field, Indices, Rows
from penstock.sources.ragged_rows import block_runs
from penstock.sources.thread_buffers import thread_array

log = logging.getLogger(__name__)

Box: TypeAlias = tuple[tuple[int, int], ...]  # first and last of each axis of a sample


class ArrayReader(ABC):
    """One array, read by ranges of samples.

    Attributes:
        samples: The number of samples.
        field: Shape and dtype of one sample.
        chunks: The shape that is decoded together: samples first, then the axes of a sample.
        how: What reads it, and perhaps why: "direct", or the name of a library.
        decodes_first: Whether a chunk is decoded only up to the last item that is needed.
    """

    samples: int
    field: Field
    chunks: tuple[int, ...]
    how: str
    decodes_first = False

    @property
    def chunk_samples(self) -> int:
        """Samples that are cheapest to read together."""
        return self.chunks[0]

    @abstractmethod
    def read(self, start: int, stop: int, out: Rows, box: Box | None = None) -> None:
        """Fill ``out`` with samples ``start:stop``, only the part ``box`` of each."""

    def view(self, start: int, stop: int, box: Box | None = None) -> Rows | None:
        """Return samples ``start:stop`` over mapped memory, or None if impossible."""
        return None

    @abstractmethod
    def fingerprint(self, box: Box | None = None) -> str:
        """Return an identity of the array's data, or of the part ``box`` of each sample."""


class DecodedArray(ArrayReader):
    """An array whose stored values are decoded when they are read, one chunk at a time.

    Args:
        stored: The reader of stored values.
        decoding: How they become data.
    """

    def __init__(self, stored: ArrayReader, decoding: Decoding) -> None:
        self._stored, self._decoding = stored, decoding
        self.field = Field(stored.field.shape, decoding.dtype)
        self.samples, self.chunks, self.how = stored.samples, stored.chunks, stored.how
        self.decodes_first = stored.decodes_first

    def read(self, start: int, stop: int, out: Rows, box: Box | None = None) -> None:
        """Fill ``out`` with samples ``start:stop``, only the part ``box`` of each."""
        first, chunk = start, max(1, self.chunk_samples)
        while first < stop:
            last = min(stop, (first // chunk + 1) * chunk)
            part = out[first - start : last - start]
            values = thread_array("values", part.shape, self._decoding.stored)
            self._stored.read(first, last, values, box)
            self._decoding.apply(values, part)
            first = last

    def fingerprint(self, box: Box | None = None) -> str:
        """Return an identity of the stored data and of how it is decoded."""
        return digest([self._stored.fingerprint(box), repr(self._decoding)], [])


def samples_first(sizes: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return sizes of all axes, at least 1, with the axis of samples first.

    >>> samples_first((4, 5, 6), 1)
    (5, 4, 6)
    """
    chunks = [max(1, int(size)) for size in sizes]
    return (chunks[axis], *chunks[:axis], *chunks[axis + 1 :])


# -- which arrays of a store are fields


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of a store, before it is opened.

    Attributes:
        name: The name of the array for messages.
        shape: The shape of the whole array.
        dims: A name for each axis (None for an axis without), or None.
        attributes: Attributes as in CF; marks of missing data are numbers.
        open: Returns the reader of stored values along an axis.
        raw: The array of the library that reads it, with shape, dtype and slicing, if there is one.
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[str | None, ...] | None
    attributes: Attributes
    open: Callable[[int], ArrayReader]
    raw: Any = None

    def axis(self, along: int | str | None) -> int:
        """Return the number of the axis of samples, from a number or a dimension name."""
        if not self.shape:
            raise SourceError(f"array {self.name} is a scalar: it has no axis of samples")
        if isinstance(along, str):
            if self.dims is None or along not in self.dims:
                known = [each for each in self.dims or () if each]
                has = f"has dimensions {known}" if known else "has no dimension names"
                raise SourceError(
                    f"array {self.name} {has}, so along={along!r} is not one of them: choose the "
                    f"axis of samples by number, from 0 to {len(self.shape) - 1}, or other arrays "
                    "with open_source(..., fields=[...])"
                )
            return self.dims.index(along)
        if not 0 <= (along or 0) < len(self.shape):
            raise SourceError(
                f"array {self.name} has shape {self.shape}: the axis of samples (along) must be "
                f"from 0 to {len(self.shape) - 1}, got {along}"
            )
        return along or 0

    def reader(self, axis: int, *, decode: bool) -> ArrayReader:
        """Return the reader along an axis; ``decode`` for decoded instead of stored values."""
        opened = self.open(self.axis(axis))
        whole_number(f"the size of a sample of {self.name}", opened.field.nbytes, error=SourceError)
        decoding = decoding_of(self.attributes, opened.field.dtype, self.name) if decode else None
        return opened if decoding is None else DecodedArray(opened, decoding)

    def sample_dims(self, axis: int) -> tuple[str, ...]:
        """Return the names of the axes of a sample, "" for one without; () if none has."""
        names = tuple(name or "" for name in self.dims or ())
        return names[:axis] + names[axis + 1 :] if any(names) else ()


def checked_along(axis: object, along: object) -> int | str | None:
    """Return the axis of samples, which may be passed under either of two names.

    >>> checked_along(None, "time"), checked_along(2, None)
    ('time', 2)
    """
    name, given = ("axis", axis) if along is None else ("along", along)
    if axis is not None and along not in (None, axis):
        raise PlanError(f"axis={axis!r} and along={along!r} are the same argument: pass one")
    if given is None or isinstance(given, str):
        return given
    return whole_number(name, given)


def chosen_axes(
    arrays: Mapping[str, StoredArray],
    where: str,
    *,
    fields: Sequence[str] | None,
    along: int | str | None,
) -> dict[str, int]:
    """Return the arrays to read, each with its axis of samples.

    By default, these are all arrays that have the axis. If all arrays have dimension names,
    coordinates are left out, and without ``along`` the axis is the first one of the largest
    array. A line in the log names what is left out.

    Args:
        arrays: All arrays of the store, by field name.
        where: The name of the store for messages.
        fields: The arrays to read.
        along: The axis of samples, by number or by dimension name.
    """
    for name in fields or ():
        if name not in arrays:
            raise SourceError(f"{name!r} of {where} is missing{did_you_mean(name, arrays)}")
    if fields is not None or list(arrays) == [""]:
        return {name: arrays[name].axis(along) for name in fields or arrays}
    usable = {name: each for name, each in arrays.items() if each.shape}
    if not usable:
        raise SourceError(f"{where} has no arrays of samples")
    if any(each.dims for each in usable.values()) or isinstance(along, str):
        usable = _of_one_dimension(usable, where, along)
    left_out = [name for name in arrays if name not in usable]
    if left_out:
        log.info("reading %s of %s; leaving out %s", _listed(usable), where, _listed(left_out))
    return {name: each.axis(along) for name, each in usable.items()}


def _of_one_dimension(
    arrays: Mapping[str, StoredArray], where: str, along: int | str | None
) -> dict[str, StoredArray]:
    """Return the data variables that have the dimension of samples."""
    coordinates = {name for name, each in arrays.items() if each.dims == (name.split("/")[-1],)}
    for each in arrays.values():
        for key in ("coordinates", "bounds"):
            coordinates.update(str(each.attributes.get(key, "")).split())
    data = {name: each for name, each in arrays.items() if name not in coordinates} or arrays
    if isinstance(along, str):
        found = {name: each for name, each in data.items() if along in (each.dims or ())}
        known = dict.fromkeys(dim for each in data.values() for dim in each.dims or () if dim)
        if known and not found:
            raise SourceError(
                f"no array of {where} has the dimension along={along!r}{did_you_mean(along, known)}"
            )
        return found or dict(data)  # without names: refused by the first of them
    if along is None and all(each.dims and each.dims[0] for each in data.values()):
        largest = max(data.values(), key=lambda each: prod(each.shape))
        first = (largest.dims or ("",))[0]
        return {name: each for name, each in data.items() if (each.dims or ("",))[0] == first}
    return dict(data)


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    shown = ", ".join(list(names)[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


class ArraySource(BaseSource):
    """Base class of sources over array readers; subclasses differ in how arrays are found.

    Args:
        readers: The reader of each field, by field name.
        name: The name of the source for messages.
        dims: The names of the axes of a sample, by field name.
    """

    def __init__(
        self,
        readers: Mapping[str, ArrayReader],
        name: str,
        dims: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        lengths = {field: reader.samples for field, reader in readers.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(
                f"arrays of {name} have different lengths {lengths}: choose arrays of one length, "
                f"such as open_source({name!r}, fields={_largest(readers)})"
            )
        fields = {field: reader.field for field, reader in readers.items()}
        super().__init__(next(iter(lengths.values())), fields, name)
        self._readers, self.dims = dict(readers), dict(dims or {})
        self.chunks = {field: reader.chunks for field, reader in readers.items()}
        self.decodes_first = any(reader.decodes_first for reader in readers.values())

    @property
    def readers(self) -> Mapping[str, str]:
        """What reads each field: "direct", or the name of a library and perhaps why."""
        return {name: each.how for name, each in self._readers.items()}

    @property
    def block_samples(self) -> int:
        """Samples in a chunk of the widest array; in an inner chunk, if it has shards."""
        widest = max(self._readers.values(), key=lambda reader: reader.field.nbytes)
        return max(1, min(widest.chunk_samples, self._length))

    def fingerprint(self) -> str:
        """Return an identity of the data: that of each array."""
        return digest({name: reader.fingerprint() for name, reader in self._readers.items()}, [])

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        for name, rows in out.items():
            self._readers[name].read(start, stop, rows)

    def read_box(
        self,
        field: str,
        start: int,
        stop: int,
        low: Sequence[int],
        high: Sequence[int],
        out: Rows,
    ) -> None:
        """Fill ``out`` with part ``low:high`` of samples ``start:stop`` of one field.

        Args:
            field: The field.
            start: The first sample.
            stop: The end of the range.
            low: The first item along each axis of a sample.
            high: The end along each axis of a sample.
            out: The array to fill.
        """
        box = tuple(zip(map(int, low), map(int, high), strict=True))
        self._readers[field].read(start, stop, out, box)

    def _take(self, indices: Indices, out: Arrays) -> None:
        for name, rows in out.items():
            reader = self._readers[name]
            for positions in block_runs(indices, max(1, reader.chunk_samples)):
                wanted = indices[positions]
                first, last = int(wanted[0]), int(wanted[-1])
                block = reader.view(first, last + 1)
                if block is None:
                    shape = (last - first + 1, *reader.field.shape)
                    block = thread_array("rows", shape, reader.field.dtype)
                    reader.read(first, last + 1, block)
                rows[positions] = block[wanted - first]

    def _view(self, start: int, stop: int) -> Arrays | None:
        views = {}
        for name, reader in self._readers.items():
            rows = reader.view(start, stop)
            if rows is None:
                return None
            views[name] = rows
        return views


class StoreSource(ArraySource):
    """Samples along one axis of the arrays of a store.

    Args:
        name: The name of the store for messages.
        arrays: The arrays of the store by field name; "" for one array without a name.
        fields: The arrays to read.
        along: The axis of samples, by number or by dimension name.
        decode: Whether to apply ``scale_factor`` and so on.
    """

    def __init__(
        self,
        name: str,
        arrays: Mapping[str, StoredArray],
        *,
        fields: Sequence[str] | None = None,
        along: int | str | None = None,
        decode: bool = True,
    ) -> None:
        if fields is not None and list(arrays) == [""]:
            raise SourceError(f"{name} is one array without fields: leave out fields=")
        axes = chosen_axes(arrays, name, fields=fields, along=along)
        readers = {each: arrays[each].reader(axis, decode=decode) for each, axis in axes.items()}
        dims = {each: arrays[each].sample_dims(axis) for each, axis in axes.items()}
        super().__init__(readers, name, dims)


def _largest(readers: Mapping[str, ArrayReader]) -> list[str]:
    """Return the names of the arrays of one length that hold the most bytes."""
    sizes: dict[int, int] = {}
    for reader in readers.values():
        size = reader.samples * reader.field.nbytes
        sizes[reader.samples] = sizes.get(reader.samples, 0) + size
    length = max(sizes, key=sizes.__getitem__)
    return [name for name, reader in readers.items() if reader.samples == length]
