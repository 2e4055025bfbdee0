"""AnnData: cells by genes, in ``.h5ad`` (HDF5) and ``.zarr``, with CSR or dense X."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock.arguments import a_path, flag
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.fingerprints import digest, field_facts, row_bytes, sampled_blocks
from penstock.registry import did_you_mean
from penstock.sources.base import (
    Arrays,
    BaseSource,
    Field,
    Indices,
    Rows,
    Source,
    Sparse,
    checked_names,
)
from penstock.sources.hdf5 import LOCK, ArrayFile, open_hdf5
from penstock.sources.ragged_rows import checked_offsets, new_buffers, take_by_blocks
from penstock.sources.sliceable import library_lock
from penstock.sources.storage import ByteStore, DirectoryStore
from penstock.sources.zarr import ZarrSource
from penstock.sources.zarr.hierarchy import read_node

log = logging.getLogger(__name__)

BLOCK_CHUNKS = 8  # a block of sparse rows begins and ends inside of a chunk: read at least these
COLUMNS = ".indices"  # after the name of a sparse matrix: the field with its columns


class AnnDataSource(BaseSource):
    """The cells of an AnnData file: X, and the columns of obs that are numbers or categories.

    X in CSR is delivered as a sparse tensor, or with its zeros (``dense=True``). Categories are
    integer codes, -1 where a value is missing; ``categories(name)`` lists their names. Columns of
    obs that hold text or missing numbers are left out unless they are chosen.

    Args:
        path: A file ``.h5ad``, a directory ``.zarr``, or a `ByteStore` with such a directory.
        columns: Fields: ``"X"``, columns of obs by name, or elements by path, such as
            ``"layers/counts"`` and ``"obsm/X_pca"``. X and obs by default.
        dense: Deliver sparse matrices with their zeros.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | ByteStore,
        *,
        columns: Sequence[str] | None = None,
        dense: bool = False,
    ) -> None:
        names, self._dense = checked_names("columns", columns), flag("dense", dense)
        self._tree = _open_tree(path)
        if self._tree.attributes("").get("encoding-type") != "anndata":
            raise SourceError(
                f"{self._tree.name} was not written by anndata 0.8 or later: read it with anndata, "
                "and write it again"
            )
        obs = _names(self._tree.attributes("obs").get("column-order", ()))
        self._samples: int | None = None
        self._arrays: dict[str, Source] = {}  # by field; each has one field of its own
        self._offsets: dict[str, Indices] = {}
        fields: dict[str, Field] = {}
        for name in names or [*(["X"] if self._tree.has("X") else []), *obs]:
            element = f"obs/{name}" if name in obs and name != "X" else name
            try:
                fields |= self._open(name, element)
            except _Unsuitable as error:
                if names is not None or name == "X":
                    raise SourceError(f"{name!r} of {self._tree.name} {error}") from None
                log.info("leaving out %r of %s, which %s", element, self._tree.name, error)
        if self._samples is None:
            raise SourceError(f"{self._tree.name} has neither X nor columns of numbers in obs")
        super().__init__(self._samples, fields)

    def __repr__(self) -> str:
        return f"AnnDataSource({self._tree.name!r}, {len(self)} samples of {list(self.fields)})"

    # -- opening

    def _open(self, name: str, element: str) -> dict[str, Field]:
        """Open an element and return its fields: one, or values and columns of a matrix."""
        if not self._tree.has(element):
            near = did_you_mean(name, ["X", *self._tree.children("")])
            raise SourceError(f"there is no {name!r} in {self._tree.name}{near}")
        attributes = self._tree.attributes(element)
        kind = attributes.get("encoding-type", "array")
        if kind == "csr_matrix":
            return self._open_csr(name, element, attributes)
        if kind == "csc_matrix":
            raise _Unsuitable(
                "is stored by columns (CSC), so that a cell is all over the file: write it by rows "
                "with adata.X = adata.X.tocsr() and adata.write"
            )
        if kind == "categorical":
            return self._add(name, self._tree.array(f"{element}/codes"))
        if kind in ("nullable-integer", "nullable-boolean"):
            mask = self._tree.array(f"{element}/mask")
            if _whole(mask).any():
                raise _Unsuitable("has missing values: fill them, and write the file again")
            return self._add(name, self._tree.array(f"{element}/values"))
        if kind != "array" or not self._tree.is_numeric(element):
            raise _Unsuitable(f"holds {kind}, not numbers: convert it to categories")
        return self._add(name, self._tree.array(element))

    def _add(self, name: str, array: Source) -> dict[str, Field]:
        self._check_length(name, len(array))
        self._arrays[name] = array
        return {name: next(iter(array.fields.values()))}

    def _open_csr(self, name: str, element: str, attributes: Mapping[str, Any]) -> dict[str, Field]:
        rows, width = (int(each) for each in np.ravel(attributes.get("shape", (-1, -1))))
        values, columns = (self._tree.array(f"{element}/{part}") for part in ("data", "indices"))
        index = self._tree.array(f"{element}/indptr")
        shown = f"{element!r} of {self._tree.name}"
        if len(index) != rows + 1 or width < 1 or len(values) != len(columns):
            raise SourceError(
                f"{shown} says that it has {rows} x {width} values, but has {len(index)} offsets, "
                f"{len(values)} values and {len(columns)} columns: write or copy it again"
            )
        last = np.empty(1, next(iter(index.fields.values())).dtype)
        index.read(rows, rows + 1, {next(iter(index.fields)): last})
        if int(last[0]) != len(values):  # before all offsets are read: a shape may say anything
            checked_offsets(np.append(0, last), len(values), shown)
        self._check_length(name, rows)
        offsets = checked_offsets(_whole(index).astype(np.int64), len(values), shown)
        self._offsets |= {name: offsets, name + COLUMNS: offsets}
        self._arrays |= {name: values, name + COLUMNS: columns}
        sparse = Sparse(name + COLUMNS, width, self._dense)
        kinds = [next(iter(each.fields.values())).dtype for each in (values, columns)]
        return {
            name: Field((), kinds[0], ragged=True, sparse=sparse),
            name + COLUMNS: Field((), kinds[1], ragged=True),
        }

    def _check_length(self, name: str, rows: int) -> None:
        self._samples = rows if self._samples is None else self._samples
        if rows != self._samples:
            raise SourceError(
                f"{name!r} of {self._tree.name} has {rows} rows, other elements {self._samples}: "
                "write or copy it again"
            )

    # -- reading

    @property
    def block_samples(self) -> int:
        """Cells in a chunk of a dense X; in several chunks of a sparse one."""
        dense = [self._arrays[name].block_samples for name in self._arrays if name == "X"]
        found = dense[0] if dense and "X" not in self._offsets else super().block_samples
        for name, offsets in self._offsets.items():
            mean = max(1, int(offsets[-1]) // max(1, len(self)))
            found = max(found, BLOCK_CHUNKS * self._arrays[name].block_samples // mean)
        return max(1, min(found, len(self)))

    @property
    def chunks(self) -> Mapping[str, tuple[int, ...]]:
        """The shape that is decoded together, by field: cells first."""
        found = {}
        for name, array in self._arrays.items():
            chunk = array.block_samples
            if name in self._offsets:
                chunk = chunk * len(self) // max(1, int(self._offsets[name][-1]))
            found[name] = (max(1, min(chunk, len(self))), *self._fields[name].shape)
        return found

    def offsets(self, name: str) -> Indices:
        """Return where the stored values of each cell begin."""
        return self._offsets[name] if name in self._offsets else super().offsets(name)

    def categories(self, name: str) -> list[str]:
        """Return the names of the categories of a column of obs, in the order of their codes.

        Args:
            name: The field.
        """
        element = f"obs/{name}/categories"
        if name not in self._fields or not self._tree.has(element):
            raise SourceError(f"{name!r} of {self._tree.name} has no categories")
        return [str(each) for each in self._tree.strings(element)]

    def fingerprint(self) -> str:
        """Return an identity: shapes, dtypes, and values of a few blocks of cells."""
        facts = [len(self), field_facts(self._fields)]
        facts += [int(offsets[-1]) for offsets in self._offsets.values()]
        parts = []
        for block in sampled_blocks(-(-len(self) // self.block_samples)):
            start = block * self.block_samples
            out = new_buffers(self, self._fields, start, min(start + 8, len(self)))
            self.read(start, min(start + 8, len(self)), out)
            parts += [row_bytes(rows) for rows in out.values()]
        return digest(facts, parts)

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        for name, rows in out.items():
            first, last, offsets = start, stop, self._offsets.get(name)
            if offsets is not None:
                first, last = int(offsets[start]), int(offsets[stop])
            array = self._arrays[name]
            array.read(first, last, {next(iter(array.fields)): rows})

    def _take(self, indices: Indices, out: Arrays) -> None:
        take_by_blocks(self, indices, out, self.block_samples)


class _Unsuitable(Exception):
    """Why an element cannot be a field, as the end of a sentence."""


def _names(found: Any) -> list[str]:
    return [each.decode() if isinstance(each, bytes) else str(each) for each in np.ravel(found)]


def _whole(array: Source) -> Rows:
    """Return all of an array that is small: 8 bytes for each cell."""
    name, field = next(iter(array.fields.items()))
    nbytes = len(array) * field.nbytes
    if nbytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2:
        raise SourceError(
            f"{array!r} has {nbytes:,} bytes, more than half of this machine's memory: if the file "
            "is not damaged, split it into several files"
        )
    rows = np.empty((len(array), *field.shape), field.dtype)
    array.read(0, len(array), {name: rows})
    return rows


# -- the two formats


class _Tree(ABC):
    """The elements of a file by path; pickles as its address."""

    name: str

    @abstractmethod
    def attributes(self, path: str) -> Mapping[str, Any]: ...

    @abstractmethod
    def has(self, path: str) -> bool: ...

    @abstractmethod
    def children(self, path: str) -> list[str]: ...

    @abstractmethod
    def is_numeric(self, path: str) -> bool: ...

    @abstractmethod
    def array(self, path: str) -> Source: ...

    @abstractmethod
    def strings(self, path: str) -> list[Any]: ...


def _open_tree(path: Any) -> _Tree:
    if isinstance(path, ByteStore):
        return _ZarrTree(path)
    file = a_path("path", path, error=SourceError)
    return _ZarrTree(DirectoryStore(file)) if file.is_dir() else _H5Tree(str(file))


class _ZarrTree(_Tree):
    def __init__(self, store: ByteStore) -> None:
        self._store, self.name = store, store.name("")

    def attributes(self, path: str) -> Mapping[str, Any]:
        node = read_node(self._store, path)
        return {} if node is None else node.attributes

    def has(self, path: str) -> bool:
        return read_node(self._store, path) is not None

    def children(self, path: str) -> list[str]:
        return self._store.children(path)

    def is_numeric(self, path: str) -> bool:
        node = read_node(self._store, path)
        return node is not None and node.array is not None

    def array(self, path: str) -> Source:
        return ZarrSource(self._store, fields=[path], decode=False)

    def strings(self, path: str) -> list[Any]:
        zarr = optional("zarr", extra="zarr")
        store, prefix = self._store.zarr_store()
        found = zarr.open_array(store, path=f"{prefix}{path}", mode="r")[...]
        return list(np.ravel(found))


class _H5Tree(_Tree):
    def __init__(self, path: str) -> None:
        self.name, self._file = path, ArrayFile(Path(path), classic=False, opened=None)

    @contextmanager
    def _root(self) -> Iterator[Any]:
        with library_lock(LOCK):
            yield self._file.root()

    def attributes(self, path: str) -> Mapping[str, Any]:
        with self._root() as root:
            return dict(root[path or "/"].attrs) if not path or path in root else {}

    def has(self, path: str) -> bool:
        with self._root() as root:
            return path in root

    def children(self, path: str) -> list[str]:
        with self._root() as root:
            return list(root[path or "/"])

    def is_numeric(self, path: str) -> bool:
        with self._root() as root:
            return hasattr(root[path], "dtype") and root[path].dtype.kind in "biufc"

    def array(self, path: str) -> Source:
        return open_hdf5(self.name, fields=[path], decode=False)

    def strings(self, path: str) -> list[Any]:
        with self._root() as root:
            return list(root[path].asstr()[...])
