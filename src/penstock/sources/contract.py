"""The contract of a source, and checks of requests to one.

A source has a length, named fields, and reads ranges or single samples into memory that the
caller provides. A class of your own needs only the members of `Source`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import UnionType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.arguments import array_of, whole_number
from penstock.errors import PlanError, SourceError
from penstock.fingerprints import row_bytes, sampled_blocks
from penstock.order.subset import Bitmap, Kept, Ranges, kept_ranges, takes_bitmap
from penstock.registry import did_you_mean

Rows: TypeAlias = npt.NDArray[np.generic]
Arrays: TypeAlias = Mapping[str, Rows]
Indices: TypeAlias = npt.NDArray[np.int64]

BLOCK_BYTES = 1 << 20  # storage without chunks of its own is read in blocks of about a megabyte
MOST_STEPS = 10_000_000  # rows of a window: each is an integer in memory


class Sparse(NamedTuple):
    """A matrix whose rows are stored as values and their columns (CSR).

    Attributes:
        columns: The ragged field with the column of each value.
        width: The number of columns of the matrix.
        dense: Whether batches are dense matrices.
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

    These attributes are optional:

    - ``offsets(name)``, for a field that is ragged (a sample has any number of items): where each
      sample's items begin, counted through all samples, and the end of the last one: int64, one
      more than samples, always the same array. In ``read`` and ``take`` the buffer of a ragged
      field is as long as the items of the samples, which are written one after the other.
    - ``seams``: the positions where a sample does not continue the one before it, such as the
      border between two files; windows of consecutive rows never cross one.
    - ``in_flight``: the number of simultaneous reads that remote storage needs for its full speed.
    - ``dims``: the names of the axes of a sample, by field (``{"t2m": ("lat", "lon")}``), "" for an
      axis without a name; a field that is missing has no names.
    - ``chunks``: the shape that storage decodes together, by field: samples first, then the axes
      of a sample. A field that is missing has ``block_samples`` whole samples.
    - ``read_box(field, start, stop, low, high, out)``: fill ``out`` with part ``low:high`` (one
      number for each axis of a sample) of samples ``start:stop``, without decoding other chunks.
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
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``, for names in ``out``.

        Args:
            start: The first sample.
            stop: One past the last sample.
            out: Arrays to fill, by the names of the fields to read.
        """
        ...

    def take(self, indices: Indices, out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples, for each name in ``out``.

        Args:
            indices: The samples, in any order.
            out: Arrays to fill, by the names of the fields to read.
        """
        ...


class Indexed(Protocol):
    """Anything with items: arrays, tensors, lists, dicts, groups of arrays, map-style datasets."""

    def __getitem__(self, index: Any, /) -> Any:
        """Return an item."""
        ...


class HasStore(Protocol):
    """An object of zarr-python or icechunk: a group, an array, a session."""

    @property
    def store(self) -> Any:
        """The store."""
        ...


# what `open_source` opens: a source, a path or URL, arrays, tables, lists and dicts of these
SourceLike: TypeAlias = "Source | str | os.PathLike[str] | Indexed | HasStore"
# the samples of a loader: a map-style dataset of any library, arrays, tensors, lists, a source
DatasetLike: TypeAlias = "Source | Indexed"


@runtime_checkable
class MappedSource(Source, Protocol):
    """A source that can also return samples in place, without a copy."""

    def view(self, start: int, stop: int) -> Arrays | None:
        """Return samples ``start:stop`` as arrays over mapped memory, or None if impossible.

        The arrays are read-only, their rows may be strided, and they stay valid as long as they
        are referenced.

        Args:
            start: The first sample.
            stop: The end of the range.
        """
        ...


def view_of(source: Source, start: int, stop: int) -> Arrays | None:
    """Return samples ``start:stop`` of any source in place, or None if impossible."""
    # not isinstance(source, MappedSource): a protocol check costs more than most views
    view = getattr(source, "view", None)
    return None if view is None else view(start, stop)


# -- checks of what a caller asks for


def checked_axis(what: str, dimensions: int, along: int | str) -> int:
    """Return the number of the axis of samples of an array without dimension names.

    >>> checked_axis("x.npy", 3, -1)
    2
    """
    number = -dimensions - 1 if isinstance(along, str) else whole_number("along", along)
    if not -dimensions <= number < dimensions:
        raise SourceError(
            f"{what} has no axis along={along!r}: choose the axis of samples by number, "
            f"from 0 to {dimensions - 1}"
        )
    return number % dimensions


def check_range(length: int, start: int, stop: int) -> None:
    """Raise ``PlanError`` unless ``start:stop`` is within ``range(length)``.

    Args:
        length: The number of samples.
        start: The first sample asked for.
        stop: The end of the range asked for.

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
    """Return the indices as int64; each must be in ``range(length)``.

    Args:
        length: The number of samples.
        indices: The samples asked for: a flat array or list of integers.

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
            f"cannot take samples {low} to {high} of {length} samples: "
            f"indices must be from 0 to {length - 1}"
        )
    return chosen.astype(np.int64, copy=False)


def checked_buffers(
    fields: Mapping[str, Field], out: Arrays, samples: int, items: Mapping[str, int] | None = None
) -> dict[str, Rows]:
    """Return the first ``samples`` rows of each buffer in ``out``, if all of them fit.

    A buffer of a ragged field must have exactly ``items[name]`` rows: a caller that does not know
    about ragged fields would mistake the rest for samples.

    Args:
        fields: The fields of the source.
        out: The caller's buffers by field name.
        samples: The number of samples asked for.
        items: By ragged field in ``out``: how many items these samples have.

    >>> fields = {"x": Field((3,), np.dtype("f4"))}
    >>> checked_buffers(fields, {"x": np.empty((8, 3), "f4")}, 2)["x"].shape
    (2, 3)
    """
    ragged = items or {}
    for name, buffer in out.items():
        field = fields.get(name)
        if field is None:
            raise PlanError(f"no field {name!r} in this source{did_you_mean(name, fields)}")
        if not isinstance(buffer, np.ndarray):
            raise PlanError(
                f"the buffer for field {name!r} must be a numpy array, got {type(buffer).__name__}"
            )
        rows, more = ragged.get(name, samples), "" if name in ragged else " or more"
        fits = buffer.dtype == field.dtype and buffer.shape[1:] == field.shape and buffer.ndim
        if not fits or len(buffer) < rows or (name in ragged and len(buffer) > rows):
            raise PlanError(
                f"the buffer for field {name!r} has shape {buffer.shape} of {buffer.dtype}: "
                f"reading {samples} samples needs ({rows}{more}, *{field.shape}) of {field.dtype}"
            )
    return {name: buf if name in ragged else buf[:samples] for name, buf in out.items()}


def checked_names(name: str, value: object, kinds: type | UnionType = str) -> list[Any] | None:
    """Return the names of fields or columns as a list without repetitions; None stays None.

    Args:
        name: The argument.
        value: Its value.
        kinds: The types that a name may have.

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


def selected(name: str, chosen: Any, samples: int) -> Kept:
    """Return the samples that indices, a mask, a range or a slice select.

    >>> selected("chosen", [7, 2, 3], 10).facts().tolist()
    [[2, 7], [4, 8]]
    """
    if isinstance(chosen, slice):
        chosen = range(samples)[chosen]
    if isinstance(chosen, range) and chosen and abs(chosen.step) == 1:  # of any size: no list
        low, high = sorted((chosen[0], chosen[-1]))
        if low < 0 or high >= samples:
            raise PlanError(f"{name} must be within the {samples} samples, got {chosen}")
        return Ranges(np.array([low], np.int64), np.array([high + 1], np.int64), samples)
    given = array_of(name, chosen)
    if given.dtype == bool:
        if given.shape != (samples,):
            raise PlanError(
                f"{name} is a mask of shape {given.shape}, and there are {samples} samples: pass "
                "one bool for each"
            )
        if takes_bitmap(int(np.count_nonzero(given[1:] > given[:-1])), samples):
            return Bitmap(given)  # without a list of the samples
        indices = np.flatnonzero(given)
    else:
        try:
            indices = np.sort(checked_indices(samples, given))
        except PlanError as error:
            raise PlanError(f"{name}: {error}") from error
        repeated = np.flatnonzero(indices[1:] == indices[:-1])
        if len(repeated):
            raise PlanError(
                f"{name} has sample {int(indices[repeated[0]])} twice: a source has each sample "
                "once; use a Mixture or weights to repeat samples"
            )
    gaps = np.flatnonzero(np.diff(indices) != 1)
    first = np.append(indices[:1], indices[gaps + 1]).astype(np.int64)
    stops = np.append(indices[gaps], indices[-1:]).astype(np.int64) + 1
    return kept_ranges(first, stops, samples)


def checked_offsets(
    outputs: Collection[str], length: object, offsets: Any
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the output that each new output is made of, and its offsets."""
    if (length is None) == (offsets is None):
        raise PlanError("windows needs either length or offsets")
    if length is not None:
        offsets = range(whole_number("length", length, minimum=1, maximum=MOST_STEPS, unit="row"))
    if not isinstance(offsets, Mapping):
        each = _checked_rows("offsets", offsets)
        return {name: (name, each) for name in outputs}
    if not offsets:
        raise PlanError("offsets must name at least one output, got {}")
    named = {}
    for name, given in offsets.items():
        if not isinstance(name, str):
            raise PlanError(f"offsets: names of outputs must be strings, got {name!r}")
        of = name
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
            of, given = given
        elif name not in outputs and len(outputs) == 1:
            of = next(iter(outputs))  # the only field
        if of not in outputs:
            raise PlanError(
                f"offsets: no field {of!r} in this source{did_you_mean(str(of), outputs)}; pass "
                f"{{{name!r}: (field, [offsets])}} with one of {list(outputs)}"
            )
        named[name] = (of, _checked_rows(f"offsets of {name!r}", given))
    return named


def _checked_rows(name: str, given: object) -> tuple[int, ...]:
    if not isinstance(given, list | tuple | range | np.ndarray) or not len(given):
        raise PlanError(f"{name} must be a list of one or more integers, got {given!r}")
    return tuple(whole_number(f"an item of {name}", each) for each in given)


def checked_sizes(
    name: str, sizes: object, like: dict[str, int] | tuple[int, ...] = ()
) -> dict[str, int] | tuple[int, ...]:
    """Return sizes by dimension name or for the last axes, each at least 1.

    Args:
        name: The argument.
        sizes: Its value; a single number is for every axis of ``like``.
        like: Sizes that were checked.
    """
    if like and isinstance(sizes, int | np.integer) and not isinstance(sizes, bool):
        sizes = dict.fromkeys(like, sizes) if isinstance(like, dict) else [sizes] * len(like)
    if isinstance(sizes, Mapping) and sizes:
        return {
            str(dim): whole_number(f"{name} of {dim!r}", size, minimum=1)
            for dim, size in sizes.items()
        }
    if not isinstance(sizes, list | tuple | np.ndarray) or np.ndim(sizes) != 1 or not len(sizes):
        raise PlanError(
            f"{name} must be a dict by dimension name or a tuple for the last axes, got {sizes!r}"
        )
    return tuple(whole_number(f"an item of {name}", size, minimum=1) for size in sizes)


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
    length: int, block: int, rows: Callable[[int, int, str], Rows], fields: Iterable[str] = ("",)
) -> Iterator[bytes]:
    """Yield the bytes of a few blocks of each field, for a fingerprint.

    Args:
        length: The number of samples.
        block: Samples in a block.
        rows: Returns samples ``start:stop`` of a field.
        fields: Names of fields.
    """
    starts = [number * block for number in sampled_blocks(-(-length // block))]
    for name in fields:
        for start in starts:
            yield row_bytes(rows(start, min(length, start + block), name))


def seams_of(source: Source) -> list[int]:
    """Return the seams of any source; one without the attribute ``seams`` has none."""
    return list(getattr(source, "seams", ()))


def varies(source: Any) -> bool:
    """Return whether samples differ between passes, so that none may be reused in the next."""
    stored = (getattr(leaf, "source", None) for leaf in getattr(source, "leaves", ()))
    return any(getattr(each, "varies", False) for each in (source, *stored))


def most_in_flight(sources: Iterable[Source]) -> int | None:
    """Return the largest ``in_flight`` of the sources, or None if all of them are local."""
    found = [getattr(source, "in_flight", None) for source in sources]
    return max((count for count in found if count is not None), default=None)
