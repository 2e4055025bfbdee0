"""Objects with shape, dtype and slicing as sources: xarray, tensorstore, and arrays of your own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.fingerprints import digest, row_bytes, sampled_blocks
from penstock.sources.array_source import ArraySource, Box, BoxReader, StoredArray, chosen_axes
from penstock.sources.base import BLOCK_BYTES, Field, Rows, Source
from penstock.sources.storage import UNREADABLE, one_line

_LOCKS: dict[tuple[int, str], threading.Lock] = {}


def library_lock(name: str) -> threading.Lock:
    """Return the lock of a library that only one thread may call; one for each process.

    Args:
        name: Of the library. h5py and netCDF4 share "HDF5", which may be the same C library.
    """
    return _LOCKS.setdefault((os.getpid(), name), threading.Lock())  # a fork may inherit it locked


class SliceableArray:
    """Samples along one axis of any object with shape, dtype and slicing.

    Args:
        array: The object. What slicing returns must be convertible by ``numpy.asarray``.
        axis: The axis of samples.
        name: The name of the array for messages.
        how: The name of the library that reads it.
        chunks: The shape of a chunk of the storage, if it is known.
        lock: The name of the lock that reads must hold; None if any thread may read.
    """

    def __init__(
        self,
        array: Any,
        axis: int,
        *,
        name: str,
        how: str,
        chunks: Sequence[int] | None,
        lock: str | None,
    ) -> None:
        self._array, self._axis, self._name, self.how, self._lock = array, axis, name, how, lock
        shape = tuple(int(size) for size in array.shape)
        self._stored = numpy_dtype(array.dtype, name)
        dtype = self._stored.newbyteorder("=")
        self.samples, self.field = shape[axis], Field((*shape[:axis], *shape[axis + 1 :]), dtype)
        if chunks is None:  # about a megabyte of whole samples
            rows = max(1, min(self.samples, BLOCK_BYTES // max(1, self.field.nbytes)))
            chunks = (*shape[:axis], rows, *shape[axis + 1 :])
        sizes = [max(1, int(size)) for size in chunks]
        self.chunks = (sizes[axis], *sizes[:axis], *sizes[axis + 1 :])
        self.chunk_samples = self.chunks[0]

    def read(self, start: int, stop: int, out: Rows, box: Box | None = None) -> None:
        """Fill ``out`` with samples ``start:stop``, of each only the part ``box``."""
        others = [slice(first, last) for first, last in box or [(0, n) for n in self.field.shape]]
        key = (*others[: self._axis], slice(start, stop), *others[self._axis :])
        try:
            with self._locked():
                found = np.asarray(self._array[key])
            np.copyto(out, np.moveaxis(found, self._axis, 0), casting="equiv")
        except SourceError:
            raise
        except UNREADABLE as error:
            raise SourceError(
                f"{self.how} cannot read {self._name} at samples {start}:{stop}: "
                f"{one_line(error)}; check that the file is complete, and not being changed"
            ) from error

    def view(self, start: int, stop: int) -> Rows | None:
        """Return None: the library copies."""
        return None

    def fingerprint(self) -> str:
        """Return an identity: shape, dtype and a few samples."""
        row, parts = np.empty((1, *self.field.shape), self.field.dtype), []
        for sample in sampled_blocks(self.samples):
            self.read(sample, sample + 1, row)
            parts.append(row_bytes(row))
        return digest([self.samples, self.field.shape, self._stored.str, self._axis], parts)

    def _locked(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._lock is None else library_lock(self._lock)


def numpy_dtype(dtype: Any, name: str) -> np.dtype[np.generic]:
    """Return the dtype of an array, if its items have one size that numpy knows."""
    try:
        found: np.dtype[np.generic] = np.dtype(getattr(dtype, "numpy_dtype", dtype))
    except TypeError:
        found = np.dtype(object)
    if found.hasobject or found.kind not in "biufcmMSUV" or (found.kind == "V" and not found.names):
        raise SourceError(
            f"array {name} holds items of dtype {dtype}, which cannot be samples: leave it out "
            "with open_source(..., fields=[...])"
        )
    return found


class StoreSource(ArraySource):
    """Samples along one axis of the arrays of a store that a library reads.

    Args:
        arrays: The arrays of the store by field name; "" for one array without a name.
        name: The name of the store for messages.
        fields: The arrays to read.
        along: The axis of samples, by number or by dimension name.
        decode: Whether to apply ``scale_factor`` and so on.
    """

    def __init__(
        self,
        arrays: Mapping[str, StoredArray],
        name: str,
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
        self._name = name

    def __repr__(self) -> str:
        return f"StoreSource({self._name!r}, {len(self)} samples of {list(self.fields)})"


def opener_of(array: Any, **how: Any) -> Callable[[int], BoxReader]:
    """Return the function that opens an array along an axis, for a `StoredArray`."""
    return partial(SliceableArray, array, **how)


# -- objects


def open_sliceable(where: Any, *, along: int | str | None = None, decode: bool = True) -> Source:
    """Return a source over any object with shape, dtype and slicing; reads take turns.

    Args:
        where: The object. ``chunks`` and ``dims`` are used where it has them.
        along: The axis of samples, by number or by dimension name.
        decode: Not used: such objects have no attributes.
    """
    name, chunks = f"a {type(where).__name__}", getattr(where, "chunks", None)
    regular = isinstance(chunks, tuple) and all(isinstance(size, int) for size in chunks)
    package = type(where).__module__.partition(".")[0]
    how = {"name": name, "how": package, "chunks": chunks if regular else None, "lock": package}
    dims = _names(getattr(where, "dims", None), len(where.shape))
    array = StoredArray(name, tuple(where.shape), dims, {}, opener_of(where, **how))
    return StoreSource({"": array}, name, along=along)


def _names(value: object, axes: int) -> tuple[str | None, ...] | None:
    names = tuple(value) if isinstance(value, tuple | list) else ()
    fits = len(names) == axes and all(isinstance(name, str) for name in names)
    return names if fits else None


class _TensorStore:
    """A tensorstore that numpy slices can index from 0, whatever its domain begins with."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.shape, self.dtype = tuple(store.shape), store.dtype
        self._begin = tuple(store.domain.inclusive_min)

    def __getitem__(self, key: tuple[slice, ...]) -> Any:
        moved = zip(key, self._begin, strict=True)
        at = tuple(slice(part.start + begin, part.stop + begin) for part, begin in moved)
        return self._store[at].read().result()


def open_tensorstore(where: Any, *, along: int | str | None = None, decode: bool = True) -> Source:
    """Return a source over a `tensorstore.TensorStore`: its values as tensorstore reads them.

    Args:
        where: The open store; it is read by several threads at once.
        along: The axis of samples, by number or by the label of its dimension.
        decode: Not used: tensorstore does not report attributes.
    """
    name, labels = "the tensorstore", where.domain.labels
    chunks = where.chunk_layout.read_chunk.shape
    known = chunks is not None and all(chunks)
    how = {"name": name, "how": "tensorstore", "chunks": chunks if known else None, "lock": None}
    dims = tuple(label or None for label in labels) if any(labels) else None
    array = _TensorStore(where)
    stored = StoredArray(name, array.shape, dims, {}, opener_of(array, **how))
    return StoreSource({"": stored}, name, along=along)


class _XarrayVariable:
    """A variable of xarray, of which only the parts that are read are loaded."""

    def __init__(self, variable: Any) -> None:
        self._variable, self.shape, self.dtype = variable, variable.shape, variable.dtype

    def __getitem__(self, key: tuple[slice, ...]) -> Any:
        return self._variable[key].to_numpy()


def open_xarray(
    where: Any,
    *,
    fields: Sequence[str] | None = None,
    along: int | str | None = None,
    decode: bool = True,
) -> Source:
    """Return a source over a DataArray or a Dataset of xarray, with the values that xarray has.

    Args:
        where: The DataArray or the Dataset. What is not in memory is loaded where it is read.
        fields: Variables of a Dataset; by default all data variables with the axis of samples.
        along: The dimension of samples, by name or number.
        decode: Not used: xarray has decoded the values, or was asked not to.
    """
    name = f"the xarray {type(where).__name__}"
    if not hasattr(where, "data_vars"):
        variable = where.variable if hasattr(where, "variable") else where
        variables = {"": variable}
    else:
        chosen = where.data_vars if fields is None else where.variables
        variables = {str(each): where[each].variable for each in chosen}
    arrays = {each: _xarray_array(variable, each, name) for each, variable in variables.items()}
    return StoreSource(arrays, name, fields=fields, along=along)


def _xarray_array(variable: Any, field: str, where: str) -> StoredArray:
    name = f"{field!r} of {where}" if field else where
    dims, preferred = tuple(map(str, variable.dims)), variable.encoding.get("preferred_chunks", {})
    if variable.chunks is not None:  # of dask: one list of sizes for each axis
        preferred = {dim: max(sizes) for dim, sizes in variable.chunksizes.items()}
    chunks = None
    if preferred:
        chunks = [preferred.get(dim, n) for dim, n in zip(dims, variable.shape, strict=True)]
    how = {"name": name, "how": "xarray", "chunks": chunks, "lock": None}  # it has its own locks
    opened = opener_of(_XarrayVariable(variable), **how)
    return StoredArray(name, tuple(variable.shape), dims, {}, opened)
