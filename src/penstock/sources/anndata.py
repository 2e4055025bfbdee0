"""AnnData: cells by genes, in ``.h5ad`` (HDF5) and ``.zarr``, with CSR or dense X."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.arguments import a_path, flag
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.registry import did_you_mean
from penstock.sources.array_source import ArrayReader
from penstock.sources.base import BaseSource
from penstock.sources.contract import Arrays, Field, Indices, Rows, Sparse, checked_names
from penstock.sources.hdf5 import LOCK, ArrayFile, arrays_of_hdf5, group_attributes
from penstock.sources.ragged_rows import checked_offsets
from penstock.sources.sliceable import library_lock
from penstock.sources.storage import ByteStore, DirectoryStore
from penstock.sources.zarr.source import read_node, stored_arrays

log = logging.getLogger(__name__)

BLOCK_CHUNKS = 8  # at least: the first and last chunk of a block of sparse rows are read twice
COLUMNS = ".indices"  # after the name of a sparse matrix: the field with its columns
NUMBERS = {  # the array with the numbers of an element, by its encoding
    "array": "",
    "categorical": "/codes",
    "nullable-integer": "/values",
    "nullable-boolean": "/values",
}


class AnnDataSource(BaseSource):
    """The cells of an AnnData file: X, and the columns of obs that are numbers or categories.

    X in CSR is delivered as a sparse tensor, or a dense one (``dense=True``). Categories are
    integer codes, -1 where a value is missing; ``categories(name)`` lists their names. Columns of
    obs that hold text or missing numbers are left out unless they are chosen.

    Args:
        path: A file ``.h5ad``, a directory ``.zarr``, or a `ByteStore` with such a directory.
        columns: Fields: ``"X"``, columns of obs by name, or elements by path, such as
            ``"layers/counts"`` and ``"obsm/X_pca"``. X and obs by default.
        dense: Deliver sparse matrices as dense tensors.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | ByteStore,
        *,
        columns: Sequence[str] | None = None,
        dense: bool = False,
    ) -> None:
        names, self._dense = checked_names("columns", columns), flag("dense", dense)
        self._tree = tree = _open_tree(path)
        if (tree.attributes("") or {}).get("encoding-type") != "anndata":
            raise SourceError(
                f"{tree.name} was not written by anndata 0.8 or later: read it with anndata, "
                "and write it again"
            )
        ordered = np.ravel((tree.attributes("obs") or {}).get("column-order", ()))
        obs = [each.decode() if isinstance(each, bytes) else str(each) for each in ordered]
        self._arrays: dict[str, ArrayReader] = {}
        offsets: dict[str, Indices] = {}
        fields: dict[str, Field] = {}
        samples: dict[str, int] = {}
        for name in names or ["X"] * (tree.attributes("X") is not None) + obs:
            element = f"obs/{name}" if name in obs and name != "X" else name
            try:
                samples[name] = self._open(name, element, fields, offsets)
            except _Unsuitable as error:
                if names is not None or name == "X":
                    raise SourceError(f"{name!r} of {tree.name} {error}") from None
                log.info("leaving out %r of %s, which %s", element, tree.name, error)
        if not samples:
            raise SourceError(f"{tree.name} has neither X nor columns of numbers in obs")
        if len(set(samples.values())) > 1:
            raise SourceError(
                f"elements of {tree.name} have different numbers of rows {samples}: write or copy "
                "it again"
            )
        super().__init__(next(iter(samples.values())), fields, tree.name, offsets)
        chunks = {}
        for name, array in self._arrays.items():
            chunk = array.chunk_samples
            if name in offsets:  # the cells that have as many values on average
                chunk = chunk * len(self) // max(1, int(offsets[name][-1]))
            chunks[name] = (max(1, min(chunk, len(self))), *fields[name].shape)
        self.chunks = chunks

    # -- opening

    def _open(
        self, name: str, element: str, fields: dict[str, Field], offsets: dict[str, Indices]
    ) -> int:
        """Open an element, add its fields (two for a sparse matrix), and return its rows."""
        attributes = self._tree.attributes(element)
        if attributes is None:
            near = did_you_mean(name, ["X", *self._tree.names()])
            raise SourceError(f"there is no {name!r} in {self._tree.name}{near}")
        kind = attributes.get("encoding-type", "array")
        if kind == "csr_matrix":
            return self._open_csr(name, element, attributes, fields, offsets)
        if kind == "csc_matrix":
            raise _Unsuitable(
                "is stored by columns (CSC), so a cell is scattered in the file: write it by rows "
                "with adata.X = adata.X.tocsr() and adata.write"
            )
        if kind not in NUMBERS:
            raise _Unsuitable(f"holds {kind}, not numbers: convert it to categories")
        if kind.startswith("nullable") and _whole(self._tree.array(f"{element}/mask")).any():
            raise _Unsuitable("has missing values: fill them, and write the file again")
        self._arrays[name] = array = self._tree.array(element + NUMBERS[kind])
        fields[name] = array.field
        return array.samples

    def _open_csr(
        self,
        name: str,
        element: str,
        attributes: Mapping[str, Any],
        fields: dict[str, Field],
        offsets: dict[str, Indices],
    ) -> int:
        rows, width = (int(each) for each in np.ravel(attributes.get("shape", (-1, -1))))
        parts = ("data", "indices", "indptr")
        values, columns, index = (self._tree.array(f"{element}/{part}") for part in parts)
        shown = f"{element!r} of {self._tree.name}"
        if index.samples != rows + 1 or width < 1 or values.samples != columns.samples:
            raise SourceError(
                f"{shown} has the shape {rows} x {width}, but {index.samples} "
                f"offsets, {values.samples} values and {columns.samples} columns: write or copy it "
                "again"
            )
        last = np.empty(1, index.field.dtype)
        index.read(rows, rows + 1, last)
        if int(last[0]) != values.samples:  # before all are read: a wrong shape may be huge
            checked_offsets(np.append(0, last), values.samples, shown)
        begins = checked_offsets(_whole(index).astype(np.int64), values.samples, shown)
        sparse = Sparse(name + COLUMNS, width, self._dense)
        for field, array in ((name, values), (name + COLUMNS, columns)):
            self._arrays[field], offsets[field] = array, begins
            matrix = sparse if field == name else None
            fields[field] = Field((), array.field.dtype, ragged=True, sparse=matrix)
        return rows

    # -- reading

    @property
    def block_samples(self) -> int:
        """Cells in a chunk of a dense X; in several chunks of a sparse one."""
        dense = "X" in self._arrays and "X" not in self._offsets
        found = self._arrays["X"].chunk_samples if dense else super().block_samples
        for name, offsets in self._offsets.items():
            mean = max(1, int(offsets[-1]) // max(1, len(self)))
            found = max(found, BLOCK_CHUNKS * self._arrays[name].chunk_samples // mean)
        return max(1, min(found, len(self)))

    def categories(self, name: str) -> list[str]:
        """Return the names of the categories of a column of obs, in the order of their codes.

        Args:
            name: The field.
        """
        element = f"obs/{name}/categories"
        if name not in self._fields or self._tree.attributes(element) is None:
            raise SourceError(f"{name!r} of {self._tree.name} has no categories")
        return [str(each) for each in self._tree.strings(element)]

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        for name, rows in out.items():
            first, last, offsets = start, stop, self._offsets.get(name)
            if offsets is not None:
                first, last = int(offsets[start]), int(offsets[stop])
            self._arrays[name].read(first, last, rows)


class _Unsuitable(Exception):
    """An element cannot be a field; the message is the end of a sentence that says why."""


def _whole(array: ArrayReader) -> Rows:
    """Return all of an array that is small: 8 bytes for each cell."""
    nbytes = array.samples * array.field.nbytes
    if nbytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2:
        raise SourceError(
            f"an array of {array.samples} items has {nbytes:,} bytes, more than half of this "
            "machine's memory: if the file is not damaged, split it into several files"
        )
    rows = np.empty((array.samples, *array.field.shape), array.field.dtype)
    array.read(0, array.samples, rows)
    return rows


# -- the elements of both formats by path


class _ZarrTree:
    def __init__(self, store: ByteStore) -> None:
        self._store, self.name = store, store.name("")

    def attributes(self, path: str) -> Mapping[str, Any] | None:
        """Return the attributes of an element, or None if there is no such element."""
        node = read_node(self._store, path)
        return None if node is None else node.attributes

    def names(self) -> list[str]:
        return self._store.children("")

    def array(self, path: str) -> ArrayReader:
        return stored_arrays(self._store, [path])[path].reader(0, decode=False)

    def strings(self, path: str) -> list[Any]:
        store, prefix = self._store.zarr_store()
        array = optional("zarr", extra="zarr").open_array(store, path=f"{prefix}{path}", mode="r")
        return list(np.ravel(array[...]))


class _H5Tree:
    def __init__(self, path: Path) -> None:
        self.name, self._found = arrays_of_hdf5(path)
        self._file: ArrayFile = next(iter(self._found.values())).raw.file
        self._groups = group_attributes(self._file)

    def attributes(self, path: str) -> Mapping[str, Any] | None:
        """Return the attributes of an element, or None if there is no such element."""
        return self._found[path].attributes if path in self._found else self._groups.get(path)

    def names(self) -> list[str]:
        return list(self._groups)

    def array(self, path: str) -> ArrayReader:
        if path not in self._found:
            raise SourceError(f"{path!r} of {self.name} is missing: write or copy it again")
        return self._found[path].reader(0, decode=False)

    def strings(self, path: str) -> list[Any]:
        with library_lock(LOCK):
            return list(self._file.root()[path].asstr()[...])


def _open_tree(path: Any) -> _ZarrTree | _H5Tree:
    if isinstance(path, ByteStore):
        return _ZarrTree(path)
    file = a_path("path", path, error=SourceError)
    return _ZarrTree(DirectoryStore(file)) if file.is_dir() else _H5Tree(file)
