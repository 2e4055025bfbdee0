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
from typing import Any, Protocol, TypeAlias, runtime_checkable

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


@dataclass(frozen=True, slots=True)
class Field:
    """Shape and dtype of one sample, without the leading axis of samples.

    Args:
        shape: The shape of one sample; ``()`` for a single number.
        dtype: The numpy dtype of its items.

    >>> Field((3, 4), np.dtype("float32")).nbytes
    48
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def nbytes(self) -> int:
        """The size of one sample in bytes."""
        return prod(self.shape) * self.dtype.itemsize


@runtime_checkable
class Source(Protocol):
    """Storage that samples are read from.

    A source is cheap to create, can be pickled (a pickle holds the address, not the data) and
    opens its files once per process. All methods may be called from several threads at once. A
    source with one unnamed array has the single field ``""``; named arrays are fields of those
    names, all with the same number of samples.

    Three attributes are optional. ``seams`` lists the positions where a sample does not continue
    the one before it, such as the border between two files; windows of consecutive rows never
    cross one. ``in_flight`` is the number of simultaneous reads that remote storage needs for
    its full speed. ``chunk_samples`` maps each field to the samples that are decoded together,
    0 where nothing is decoded; without it, see `chunk_samples_of`.
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
        return samples_per_block(self._length, self._fields)

    @property
    def seams(self) -> list[int]:
        """Positions where a sample does not continue the one before it."""
        return []

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
        self._read(start, stop, checked_buffers(self._fields, out, stop - start))

    def take(self, indices: Indices, out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples, for each name in ``out``."""
        chosen = checked_indices(self._length, indices)
        self._take(chosen, checked_buffers(self._fields, out, len(chosen)))

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


def checked_buffers(fields: Mapping[str, Field], out: Arrays, samples: int) -> dict[str, Rows]:
    """Return the first ``samples`` rows of each buffer in ``out``, if all of them fit.

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
        fits = buffer.dtype == field.dtype and buffer.shape[1:] == field.shape and buffer.ndim
        if not fits or len(buffer) < samples:
            raise PlanError(
                f"the buffer for field {name!r} has shape {buffer.shape} of {buffer.dtype}: "
                f"reading {samples} samples needs ({samples} or more, *{field.shape}) of "
                f"{field.dtype}"
            )
    return {name: buffer[:samples] for name, buffer in out.items()}


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


# -- blocks of samples


def samples_per_block(length: int, fields: Mapping[str, Field]) -> int:
    """Return the number of samples in about a megabyte: at least one, at most all of them.

    >>> samples_per_block(1_000_000, {"x": Field((1024,), np.dtype("f4"))})
    256
    """
    sample_bytes = sum(field.nbytes for field in fields.values())
    return max(1, min(length, -(-BLOCK_BYTES // max(1, sample_bytes))))


def sample_bytes(source: Source) -> int:
    """Return the bytes of one sample, all fields together."""
    return sum(field.nbytes for field in source.fields.values())


def chunk_samples_of(source: Source) -> Mapping[str, int]:
    """Return, for each field, the samples that storage decodes together; 0 if none are decoded.

    A source without the attribute ``chunk_samples`` decodes a block of all fields together.
    """
    found: Mapping[str, int] | None = getattr(source, "chunk_samples", None)
    if found is not None:
        return found
    few = min(len(source), 2 * source.block_samples + 1)
    in_place = isinstance(source, MappedSource) and source.view(0, few) is not None
    block = 0 if in_place else min(source.block_samples, len(source))
    return dict.fromkeys(source.fields, block)


def sampled_rows(
    length: int, block: int, rows: Callable[[int, int], Iterable[Rows]]
) -> list[bytes]:
    """Return the bytes of a few blocks; ``rows`` gives the arrays of samples ``start:stop``."""
    starts = [number * block for number in sampled_blocks(-(-length // block))]
    spans = [(start, min(length, start + block)) for start in starts]
    return [row_bytes(each) for span in spans for each in rows(*span)]
