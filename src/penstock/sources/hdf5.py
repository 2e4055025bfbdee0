"""Files of HDF5 and netCDF as sources, and open objects of h5py."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.array_source import StoredArray
from penstock.sources.sliceable import Found, library_lock, sliceable_array
from penstock.sources.storage import UNREADABLE, LocalFile, reading

LOCK = "HDF5"  # h5py and netCDF4 may share the C library, which is not thread-safe
HDF5_MAGIC, CLASSIC_MAGIC = b"\x89HDF\r\n\x1a\n", b"CDF"
USER_BLOCKS = (0, 512, 1024, 2048, 4096)  # where the signature of HDF5 may be
SUPERBLOCK_BYTES = 64  # read from the signature on: enough for the end of the file
CLASSIC_ITEMS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}  # bytes
MOST_ARRAYS = 100_000
OWN_ATTRIBUTES = (  # of HDF5, and of netCDF
    *("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS"),
    *("_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties"),
)
NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"


def arrays_of_hdf5(where: Any, fields: Sequence[str] | None = None) -> Found:
    """Return the arrays of a file of HDF5 or netCDF, or of an open object of h5py.

    Arrays of groups are fields by their path, such as ``"images/raw"``. Dimension names are those
    of netCDF, of dimension scales, or of labels. Reads take turns: the C library allows one at a
    time. ``penstock convert`` writes the same data as Zarr, which all threads read at once.

    Args:
        where: A path, an ``h5py.Dataset``, or an ``h5py.Group``, also a file.
        fields: Not used.
    """
    if isinstance(where, str | os.PathLike):
        path, opened, root = Path(where), None, ""
        classic = _is_classic(path)
    else:
        path, opened, root = Path(where.file.filename), where.file, where.name.strip("/")
        classic = False
    file = ArrayFile(path, classic=classic, opened=opened)
    with library_lock(LOCK):
        found = _arrays(file, root)
    if not found:
        raise SourceError(f"{file.name} has no arrays")
    return file.name, found


class ArrayFile:
    """A file of HDF5 (read by h5py) or of classic netCDF (by netCDF4), opened in each process.

    Args:
        path: The file.
        classic: Whether netCDF4 reads it.
        opened: The file, if it is open already; other processes open it by its path.
    """

    def __init__(self, path: Path, *, classic: bool, opened: Any) -> None:
        self.path, self.classic, self.name = path, classic, str(path)
        self._opened = None if opened is None else (os.getpid(), opened)
        # the user, who passed an open file, may write to it
        self._stored = LocalFile(path) if opened is None else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def root(self) -> Any:
        """Return the open file of this process; the caller holds the lock."""
        # a file of h5py is false once the user, who passed it, has closed it
        if self._opened is None or self._opened[0] != os.getpid() or not self._opened[1]:
            self._opened = (os.getpid(), self._open())
        return self._opened[1]

    def verify(self) -> None:
        """Raise ``SourceError`` if the file was written since: HDF5 would mix old and new bytes."""
        if self._stored is not None:
            self._stored.verify()

    def _open(self) -> Any:
        library = optional("netCDF4", "xarray") if self.classic else optional("h5py", "hdf5")
        with reading(self.name, library.__name__):
            if not self.classic:
                return library.File(self.name, "r")
            file = library.Dataset(self.name)
            file.set_auto_maskandscale(False)
            return file


class FileArray:
    """One array of a file, found again by its path in every process."""

    def __init__(self, file: ArrayFile, path: str, array: Any) -> None:
        self.file, self._path = file, path
        self.shape, self.dtype = tuple(array.shape or ()), array.dtype

    @property
    def is_text(self) -> bool:
        """Whether it holds text of variable length."""
        dtype = np.dtype(self.dtype)
        return dtype.hasobject and optional("h5py", "hdf5").check_string_dtype(dtype) is not None

    def __getitem__(self, key: tuple[slice, ...]) -> Any:
        array = self.file.root()[self._path]
        if tuple(array.shape) != self.shape:
            raise SourceError(
                f"{self._path} of {self.file.name} had shape {self.shape} when it was opened, "
                f"and has {tuple(array.shape)} now: do not write to a file that is being read"
            )
        found = array[key]
        self.file.verify()
        return found


def _is_classic(path: Path) -> bool:
    """Return whether a file is classic netCDF; raise ``SourceError`` if it is not HDF5 either."""
    with reading(path), path.open("rb") as file:
        start = file.read(8)
        classic = start[:3] == CLASSIC_MAGIC
        file.seek(0)
        needed = classic_size(file) if classic else _hdf5_size(file)
        size = os.fstat(file.fileno()).st_size
    if needed is None:
        raise SourceError(
            f"{path} is neither HDF5 nor netCDF: it begins with {start!r}; if it is truncated or "
            "damaged, write or copy it again"
        )
    if size < needed:  # netCDF would read zeros, and so would HDF5 in a file that is open already
        raise SourceError(
            f"{path} has {size} bytes but its header promises {needed}: the file is truncated; "
            "write or copy it again"
        )
    return classic


def _hdf5_size(file: BinaryIO) -> int | None:
    """Return the minimum size of a file of HDF5, from its superblock; None if it has none."""
    for begin in USER_BLOCKS:
        file.seek(begin)
        head = file.read(SUPERBLOCK_BYTES)
        if head[:8] == HDF5_MAGIC:
            at, width = {0: (40, 13), 1: (44, 13)}.get(head[8], (28, 9))  # the end, and its width
            return begin + (struct.unpack_from("<Q", head, at)[0] if head[width] == 8 else 0)
    return None


def classic_size(file: BinaryIO) -> int:
    """Return the minimum size of a classic netCDF file, from its header.

    Args:
        file: The file, at its start.
    """
    version = file.read(4)[3]
    count, offset = (">q" if version == 5 else ">i"), (">i" if version == 1 else ">q")

    def number(kind: str = count, minimum: int = 0) -> int:
        found = int(struct.unpack(kind, file.read(struct.calcsize(kind)))[0])
        if found < minimum:  # a negative size would seek backwards, in an endless loop
            raise ValueError(f"its header has the size {found}")
        return found

    def skip(nbytes: int) -> None:
        file.seek(-(-nbytes // 4) * 4, os.SEEK_CUR)

    def items() -> range:
        number(">i")  # a tag: dimensions, attributes or variables
        return range(number())

    def skip_attributes() -> None:
        for _ in items():
            skip(number())  # the name
            nbytes = CLASSIC_ITEMS[number(">i")]
            skip(nbytes * number())

    records, lengths = number(minimum=-1), []  # -1: it was written without knowing
    for _ in items():
        skip(number())
        lengths.append(number())
    skip_attributes()
    end, begins, slabs = 0, [], []  # of the variables that have records
    for _ in items():
        skip(number())
        shape = [lengths[number()] for _ in range(number())]
        skip_attributes()
        nbytes = CLASSIC_ITEMS[number(">i")]
        number(minimum=-1)  # padded size, which overflows
        begin = number(offset)
        if shape and not shape[0]:
            begins.append(begin)
            slabs.append(nbytes * prod(shape[1:]))
        else:
            end = max(end, begin + nbytes * prod(shape))
    if records > 0 and begins:
        step = slabs[0] if len(slabs) == 1 else sum(-(-slab // 4) * 4 for slab in slabs)
        ends = [first + slab for first, slab in zip(begins, slabs, strict=True)]
        end = max(end, max(ends) + (records - 1) * step)
    return end


def _arrays(file: ArrayFile, root: str) -> dict[str, StoredArray]:
    """Return the arrays below a path of the file; the caller holds the lock."""
    with reading(f"the list of arrays of {file.name}"):
        if file.classic:
            return {n: _array(file, n, v, v.dimensions) for n, v in file.root().variables.items()}
        top = file.root()[f"/{root}"]
        if hasattr(top, "shape"):
            return {"": _array(file, root, top, _scales(top))}
        prefix = f"{root}/" if root else ""
        return {n: _array(file, prefix + n, each, _scales(each)) for n, each in _datasets(top)}


def _datasets(top: Any) -> Iterator[tuple[str, Any]]:
    """Yield the datasets below a group, in the order of their names; links are not followed."""
    found: list[tuple[str, Any]] = []

    def visit(path: str, node: Any) -> bool | None:
        if hasattr(node, "shape") and hasattr(node, "dims"):
            found.append((path, node))
        return True if len(found) > MOST_ARRAYS else None  # anything but None ends the visit

    top.visititems(visit)  # soft and external links could lead out of the file
    if len(found) > MOST_ARRAYS:
        raise SourceError(
            f"{top.file.filename} has more than {MOST_ARRAYS:,} arrays: pass a group of it"
        )
    for path, node in found:
        name = node.attrs.get("NAME", b"")
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        if not text.startswith(NO_VARIABLE):
            yield path, node


def _array(file: ArrayFile, path: str, array: Any, dims: Sequence[str]) -> StoredArray:
    name = f"{file.name}/{path}"
    _refuse_other_files(array, name)
    chunks = array.chunking() if file.classic else array.chunks
    return sliceable_array(
        FileArray(file, path, array),
        name,
        how="netCDF4" if file.classic else "h5py",
        chunks=chunks if isinstance(chunks, tuple) else None,
        lock=LOCK,
        dims=dims,
        attributes=_attributes(array),
    )


def _refuse_other_files(array: Any, name: str) -> None:
    """Raise ``SourceError`` for data in files outside of the directory of their HDF5 file."""
    others = [each[0] for each in getattr(array, "external", None) or ()]
    if getattr(array, "is_virtual", False):
        others += [each.file_name for each in array.virtual_sources()]
    for other in others:
        if Path(other).is_absolute() or ".." in Path(other).parts:
            raise SourceError(
                f"array {name} is stored in {other!r}, outside of the directory of its file: copy "
                "the data into one file, or choose other arrays with open_source(..., fields=[...])"
            )


def _scales(dataset: Any) -> list[str]:
    """Return the dimension names of a dataset of h5py: labels, or names of dimension scales."""
    if dataset.shape is None:
        return []
    if dataset.attrs.get("CLASS") == b"DIMENSION_SCALE" and len(dataset.shape) == 1:
        return [dataset.dims[0].label or dataset.name.rsplit("/", 1)[-1]]
    scales = [(dim[0].name or "").rsplit("/", 1)[-1] if len(dim) else "" for dim in dataset.dims]
    return [dim.label or scale for dim, scale in zip(dataset.dims, scales, strict=True)]


def _attributes(array: Any) -> Mapping[str, Any]:
    """Return the attributes as numpy scalars, arrays and text, without those of HDF5 itself."""
    if hasattr(array, "ncattrs"):
        return {name: array.getncattr(name) for name in array.ncattrs()}
    found = {}
    for name in array.attrs:
        if name in OWN_ATTRIBUTES:
            continue
        try:
            value = array.attrs[name]
        except UNREADABLE:  # of a type that h5py does not know
            continue
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.reshape(())[()]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, str | np.generic | np.ndarray | int | float):
            found[name] = value
    return found


def group_attributes(file: ArrayFile) -> dict[str, Mapping[str, Any]]:
    """Return the attributes of all groups of a file, by their path; "" is the file itself."""
    with library_lock(LOCK), reading(f"the attributes of {file.name}"):
        root = file.root()
        found = {"": _attributes(root)}

        def visit(path: str, node: Any) -> None:
            if not hasattr(node, "shape"):
                found[path] = _attributes(node)

        if not file.classic:
            root.visititems(visit)
    return found
