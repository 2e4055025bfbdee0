"""The contract of a source, the base class of Penstock's own sources, and what both need.

A source has a length, named fields, and reads ranges or single samples into memory that the
caller provides. A class of your own needs only the members of `Source`; the sources of this
package derive from `BaseSource`, which checks every request before a subclass sees it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import UnionType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.fingerprints import row_bytes, sampled_blocks
from penstock.registry import did_you_mean

Rows: TypeAlias = npt.NDArray[np.generic]
Arrays: TypeAlias = Mapping[str, Rows]
Indices: TypeAlias = npt.NDArray[np.int64]

BLOCK_BYTES = 1 << 20  # storage without chunks of its own is read in blocks of about a megabyte


class Sparse(NamedTuple):
    """A matrix whose rows are stored as values and their columns (CSR).

    Attributes:
        columns: The ragged field with the column of each value.
        width: The number of columns of the matrix.
        dense: Whether batches have the zeros too.
    """

    columns: str
    width: int
    dense: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """Shape and dtype of one sample, without the leading axis of samples.

    Args:
        shape: The shape of one sample; ``()`` for a single number.
        dtype: The numpy dtype of its items.
        ragged: A sample is any number of items, and ``shape`` and ``dtype`` are those of one item.
        sparse: The ragged field has the values of a sparse matrix.

    >>> Field((3, 4), np.dtype("float32")).nbytes
    48
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    ragged: bool = False
    sparse: Sparse | None = None

    def __repr__(self) -> str:
        shown = f"shape={self.shape!r}, dtype={self.dtype!r}" + ", ragged=True" * self.ragged
        return f"Field({shown}{f', sparse={self.sparse}' if self.sparse else ''})"

    @property
    def nbytes(self) -> int:
        """The size of one sample in bytes; of one item if it is ragged."""
        return prod(self.shape) * self.dtype.itemsize


@runtime_checkable
class Source(Protocol):
    """Storage that samples are read from.

    A source is cheap to create, can be pickled (a pickle holds the address, not the data) and
    opens its files once per process. All methods may be called from several threads at once. A
    source with one unnamed array has the single field ``""``; named arrays are fields of those
    names, all with the same number of samples.

    Rows of different lengths: a ragged field has, for each sample, any number of items. The source
    then has a method ``offsets(name)``, which returns where each sample's items begin, counted
    through all samples, and where the last one ends: int64, one more than samples, always the same
    array. In ``read`` and ``take`` the buffer of a ragged field is as long as the items of the
    samples, which are written one after the other.

    Two attributes are optional. ``seams`` lists the positions where a sample does not continue
    the one before it, such as the border between two files; windows of consecutive rows never
    cross one. ``in_flight`` is the number of simultaneous reads that remote storage needs for
    its full speed.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """Shape and dtype of one sample, by field name."""
        ...

    @property
    def block_samples(self) -> int:
        """Samples that are cheapest to read together: the chunk length of the storage."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def fingerprint(self) -> str:
        """Return an identity of the data: from shapes, dtypes and a few stored bytes, no path."""
        ...

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``, for names in ``out``."""
        ...

    def take(self, indices: Indices, out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples, for each name in ``out``."""
        ...


@runtime_checkable
class MappedSource(Source, Protocol):
    """A source that can also return samples in place, without a copy."""

    def view(self, start: int, stop: int) -> Arrays | None:
        """Return samples ``start:stop`` as arrays over mapped memory, or None if impossible.

        The arrays are read-only, their rows may be strided, and they stay valid as long as they
        are referenced.
        """
        ...


class BaseSource(ABC):
    """Base class of Penstock's own sources.

    Checks ranges, indices and buffers, then calls `_read`, `_take` and `_view`. Subclasses
    implement these and `fingerprint`.

    Args:
        length: The number of samples.
        fields: Shape and dtype of one sample, by field name.
    """

    in_flight: int | None = None

    def __init__(self, length: int, fields: Mapping[str, Field]) -> None:
        self._length, self._fields = length, dict(fields)

    @property
    def fields(self) -> Mapping[str, Field]:
        """Shape and dtype of one sample, by field name."""
        return self._fields

    @property
    def block_samples(self) -> int:
        """Samples that are cheapest to read together; about a megabyte by default."""
        return samples_per_block(self._length, self._fields, self._ragged_bytes())

    def _ragged_bytes(self) -> int:
        """Return the bytes of the ragged fields of all samples."""
        names = ragged_fields(self, self._fields)
        return sum(self._fields[n].nbytes * int(self.offsets(n)[-1]) for n in names)

    @property
    def seams(self) -> list[int]:
        """Positions where a sample does not continue the one before it."""
        return []

    def offsets(self, name: str) -> Indices:
        """Return where each sample's items of a ragged field begin, and the end of the last."""
        raise PlanError(f"field {name!r} of {self!r} is not ragged: its samples have one size")

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} samples of {list(self.fields)})"

    @abstractmethod
    def fingerprint(self) -> str:
        """Return an identity of the data."""

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``, for names in ``out``."""
        check_range(self._length, start, stop)
        items = {name: items_of(self, name, start, stop) for name in ragged_fields(self, out)}
        self._read(start, stop, checked_buffers(self._fields, out, stop - start, items))

    def take(self, indices: Indices, out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples, for each name in ``out``."""
        chosen = checked_indices(self._length, indices)
        items = {n: int(lengths_of(self, n, chosen).sum()) for n in ragged_fields(self, out)}
        self._take(chosen, checked_buffers(self._fields, out, len(chosen), items))

    def view(self, start: int, stop: int) -> Arrays | None:
        """Return samples ``start:stop`` in place and read-only, or None if impossible."""
        check_range(self._length, start, stop)
        return self._view(start, stop)

    @abstractmethod
    def _read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out``, whose buffers have exactly ``stop - start`` rows."""

    @abstractmethod
    def _take(self, indices: Indices, out: Arrays) -> None:
        """Fill ``out``, whose buffers have exactly ``len(indices)`` rows."""

    def _view(self, start: int, stop: int) -> Arrays | None:
        return None


# -- checks of what a caller asks for


def check_range(length: int, start: int, stop: int) -> None:
    """Raise ``PlanError`` unless ``start:stop`` is within ``range(length)``.

    >>> check_range(10, 3, 10)
    >>> check_range(10, 3, 11)
    Traceback (most recent call last):
    ...
    penstock.errors.PlanError: cannot read samples 3:11 of a source of 10 samples: ...
    """
    if type(start) is not int or type(stop) is not int:  # the usual case costs nothing
        start, stop = whole_number("start", start), whole_number("stop", stop)
    if not 0 <= start <= stop <= length:
        raise PlanError(
            f"cannot read samples {start}:{stop} of a source of {length} samples: "
            f"pass 0 <= start <= stop <= {length}"
        )


def checked_indices(length: int, indices: npt.ArrayLike) -> Indices:
    """Return the indices as int64; each must be within ``range(length)``, none is negative.

    >>> checked_indices(10, [9, 0]).tolist()
    [9, 0]
    """
    try:
        chosen = np.asarray(indices)
    except ValueError as error:  # rows of different lengths
        raise PlanError(f"indices must be a flat array of integers: {error}") from error
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        raise PlanError(
            "indices must be a flat array of integers, "
            f"got {chosen.ndim} dimensions of {chosen.dtype}"
        )
    low, high = (int(chosen.min()), int(chosen.max())) if chosen.size else (0, -1)
    if low < 0 or high >= length:
        raise PlanError(
            f"cannot take samples {low} to {high} of a source of {length} samples: "
            f"indices must be from 0 to {length - 1}"
        )
    return chosen.astype(np.int64, copy=False)


def checked_buffers(
    fields: Mapping[str, Field], out: Arrays, samples: int, items: Mapping[str, int] | None = None
) -> dict[str, Rows]:
    """Return the first ``samples`` rows of each buffer in ``out``, if all of them fit.

    Of a ragged field, the first ``items[name]`` rows.

    >>> fields = {"x": Field((3,), np.dtype("f4"))}
    >>> checked_buffers(fields, {"x": np.empty((8, 3), "f4")}, 2)["x"].shape
    (2, 3)
    """
    for name, buffer in out.items():
        field = fields.get(name)
        if field is None:
            raise PlanError(f"no field {name!r} in this source{did_you_mean(name, fields)}")
        if not isinstance(buffer, np.ndarray):
            raise PlanError(
                f"the buffer for field {name!r} must be a numpy array, got {type(buffer).__name__}"
            )
        rows = samples if items is None else items.get(name, samples)
        fits = buffer.dtype == field.dtype and buffer.shape[1:] == field.shape and buffer.ndim
        if not fits or len(buffer) < rows:
            raise PlanError(
                f"the buffer for field {name!r} has shape {buffer.shape} of {buffer.dtype}: "
                f"reading {samples} samples needs ({rows} or more, *{field.shape}) of "
                f"{field.dtype}"
            )
    if not items:
        return {name: buffer[:samples] for name, buffer in out.items()}
    return {name: buffer[: items.get(name, samples)] for name, buffer in out.items()}


def checked_names(name: str, value: object, kinds: type | UnionType = str) -> list[Any] | None:
    """Return the names of fields or columns as a list without repetitions; None stays None.

    >>> checked_names("fields", ("x", "y"))
    ['x', 'y']
    """
    if value is None:
        return None
    names = list(value) if isinstance(value, list | tuple) else []
    if not names or not all(isinstance(each, kinds) for each in names):
        raise PlanError(f"{name} must be a list of one or more names, got {value!r}")
    if len(set(names)) < len(names):
        raise PlanError(f"{name} must not repeat a name, got {value!r}")
    return names


# -- ragged fields


def ragged_fields(source: Source, names: Iterable[str]) -> list[str]:
    """Return which of the names are ragged fields of the source."""
    fields = source.fields
    return [name for name in names if name in fields and fields[name].ragged]


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


# -- blocks of samples


def samples_per_block(length: int, fields: Mapping[str, Field], ragged_bytes: int = 0) -> int:
    """Return the number of samples in about a megabyte: at least one, at most all of them.

    Args:
        length: The number of samples.
        fields: Their fields.
        ragged_bytes: The bytes of the ragged fields of all samples.

    >>> samples_per_block(1_000_000, {"x": Field((1024,), np.dtype("f4"))})
    256
    """
    sample_bytes = sum(field.nbytes for field in fields.values() if not field.ragged)
    sample_bytes += -(-ragged_bytes // max(1, length))
    return max(1, min(length, -(-BLOCK_BYTES // max(1, sample_bytes))))


def sampled_rows(
    length: int, block: int, rows: Callable[[int, int], Iterable[Rows]]
) -> list[bytes]:
    """Return the bytes of a few blocks; ``rows`` gives the arrays of samples ``start:stop``."""
    starts = [number * block for number in sampled_blocks(-(-length // block))]
    spans = [(start, min(length, start + block)) for start in starts]
    return [row_bytes(each) for span in spans for each in rows(*span)]
