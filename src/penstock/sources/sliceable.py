"""Objects with shape, dtype and slicing as sources: xarray, tensorstore, and arrays of your own."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from penstock.arguments import with_article
from penstock.errors import SourceError
from penstock.fingerprints import digest, row_bytes, sampled_blocks
from penstock.sources.array_source import (
    ArrayReader,
    Box,
    StoredArray,
    samples_first,
)
from penstock.sources.cf import Attributes
from penstock.sources.contract import BLOCK_BYTES, Field, Rows
from penstock.sources.storage import package_of, reading

Found: TypeAlias = tuple[str, dict[str, StoredArray]]  # name of a store, and its arrays by field

COMPLETE = "check that the file is complete, and not being changed"
_LOCKS: dict[tuple[int, str], threading.Lock] = {}


def library_lock(name: str) -> threading.Lock:
    """Return the lock of a library that only one thread may call; one for each process.

    Args:
        name: Name of the library. h5py and netCDF4 share "HDF5": it may be the same C library.
    """
    return _LOCKS.setdefault((os.getpid(), name), threading.Lock())  # a fork may inherit it locked


class SliceableArray(ArrayReader):
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
        lock: str | None = None,
    ) -> None:
        self._array, self._axis, self._name, self.how, self._lock = array, axis, name, how, lock
        shape = tuple(int(size) for size in array.shape)
        self._stored = numpy_dtype(array.dtype, name)
        self.samples = shape[axis]
        self.field = Field(shape[:axis] + shape[axis + 1 :], self._stored.newbyteorder("="))
        if chunks is None:  # about a megabyte of whole samples
            rows = max(1, min(self.samples, BLOCK_BYTES // max(1, self.field.nbytes)))
            chunks = (*shape[:axis], rows, *shape[axis + 1 :])
        self.chunks = samples_first(chunks, axis)

    def read(self, start: int, stop: int, out: Rows, box: Box | None = None) -> None:
        """Fill ``out`` with samples ``start:stop``, only the part ``box`` of each."""
        parts = list(box or [(0, n) for n in self.field.shape])
        parts.insert(self._axis, (start, stop))
        with reading(f"{self._name} at samples {start}:{stop}", self.how, advice=COMPLETE):
            self._fill(tuple(slice(*part) for part in parts), out)

    def _fill(self, key: tuple[slice, ...], out: Rows) -> None:
        with self._locked():
            found = np.asarray(self._array[key])
        np.copyto(out, np.moveaxis(found, self._axis, 0), casting="equiv")

    def fingerprint(self, box: Box | None = None) -> str:
        """Return an identity: shape, dtype and a few samples."""
        box = box or tuple((0, size) for size in self.field.shape)
        row, parts = np.empty((1, *(end - first for first, end in box)), self.field.dtype), []
        for sample in sampled_blocks(self.samples):
            self.read(sample, sample + 1, row, box)
            parts.append(row_bytes(row))
        return digest(self._facts(box), parts)

    def _facts(self, box: Box) -> list[object]:
        shape = tuple(end - first for first, end in box)
        return [self.samples, shape, self._stored.str, self._axis]

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


def sliceable_array(
    array: Any,
    name: str,
    dims: Sequence[str | None] = (),
    attributes: Attributes | None = None,
    **reader: Any,
) -> StoredArray:
    """Return an object with shape, dtype and slicing as an array of a store.

    Args:
        array: The object.
        name: The name of the array for messages.
        dims: A name for each axis, None for one without; () if there are none.
        attributes: Attributes as in CF.
        reader: ``how``, ``chunks`` and ``lock`` of `SliceableArray`.
    """
    opened = partial(SliceableArray, array, name=name, **reader)
    names = tuple(dim or None for dim in dims) if any(dims) else None
    return StoredArray(name, tuple(array.shape), names, attributes or {}, opened, array)


# -- what is found in objects: the name of a store, and its arrays


def arrays_of_object(where: Any, fields: Sequence[str] | None = None) -> Found:
    """Return any object with shape, dtype and slicing; reads of one library take turns.

    Args:
        where: The object. ``chunks`` and ``dims`` are used where it has them.
        fields: Not used.
    """
    name, package = with_article(type(where).__name__), package_of(where)
    chunks, dims = getattr(where, "chunks", None), getattr(where, "dims", None)
    if not isinstance(chunks, tuple) or not all(isinstance(size, int) for size in chunks):
        chunks = None
    names = tuple(dims) if isinstance(dims, tuple | list) else ()
    if len(names) != len(where.shape) or not all(isinstance(each, str) for each in names):
        names = ()
    array = sliceable_array(where, name, how=package, lock=package, chunks=chunks, dims=names)
    return name, {"": array}


class _Sliced:
    """An object of another library that is indexed like an array of numpy, by slices from 0."""

    def __init__(self, array: Any) -> None:
        self._array, self.shape, self.dtype = array, tuple(array.shape), array.dtype


class _TensorStore(_Sliced):
    """A tensorstore, wherever its domain begins."""

    def __getitem__(self, key: tuple[slice, ...]) -> Any:
        begins = self._array.domain.inclusive_min
        moved = (slice(s.start + b, s.stop + b) for s, b in zip(key, begins, strict=True))
        return self._array[tuple(moved)].read().result()


class _XarrayVariable(_Sliced):
    """A variable of xarray, of which only the parts that are read are loaded."""

    def __getitem__(self, key: tuple[slice, ...]) -> Any:
        return self._array[key].to_numpy()


def arrays_of_tensorstore(where: Any, fields: Sequence[str] | None = None) -> Found:
    """Return a `tensorstore.TensorStore`, which several threads read at once.

    Args:
        where: The open store. The labels of its domain are dimension names.
        fields: Not used.
    """
    name, chunks = "the tensorstore", where.chunk_layout.read_chunk.shape
    chunks = chunks if chunks is not None and all(chunks) else None
    array, dims = _TensorStore(where), where.domain.labels
    return name, {"": sliceable_array(array, name, how="tensorstore", chunks=chunks, dims=dims)}


def arrays_of_xarray(where: Any, fields: Sequence[str] | None = None) -> Found:
    """Return a DataArray or a Dataset of xarray, with the values that xarray returns.

    Args:
        where: The DataArray or the Dataset. What is not in memory is loaded when it is read.
        fields: The requested variables; by default all data variables.
    """
    name = f"the xarray {type(where).__name__}"
    if not hasattr(where, "data_vars"):
        return name, {"": _xarray_array(getattr(where, "variable", where), name)}
    chosen = where.data_vars if fields is None else where.variables
    named = {str(each): where[each].variable for each in chosen}
    return name, {n: _xarray_array(variable, f"{n!r} of {name}") for n, variable in named.items()}


def _xarray_array(variable: Any, name: str) -> StoredArray:
    dims, preferred = tuple(map(str, variable.dims)), variable.encoding.get("preferred_chunks", {})
    if variable.chunks is not None:  # of dask: one list of sizes for each axis
        preferred = {dim: max(sizes) for dim, sizes in variable.chunksizes.items()}
    sizes = zip(dims, variable.shape, strict=True)
    chunks = [preferred.get(dim, n) for dim, n in sizes] if preferred else None
    # no lock: xarray has its own
    return sliceable_array(_XarrayVariable(variable), name, how="xarray", chunks=chunks, dims=dims)
