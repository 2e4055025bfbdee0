"""Reads the tables of a directory, from .pt files or from HDF5; nothing in them can run code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import numpy as np
import torch

from penstock.arguments import choice
from penstock.checks import InvalidDataError
from penstock.domains.steering.files import Ragged, brief, load_pt, plain, ragged
from penstock.domains.steering.layout import HDF5, KEYWORDS, TABLES, Table
from penstock.errors import ConfigError, MissingExtraError
from penstock.extras import optional

FORMATS: Final = ("auto", "pt", "hdf5")


class MissingHdf5Error(MissingExtraError, ValueError):
    """HDF5 was asked for, and its library is not installed."""


class Column(Protocol):
    """A table on disk: sizes known, rows read when asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    def __getitem__(self, rows: slice) -> Any:
        """Some of its rows."""
        ...


class Reader(ABC):
    """Tables of one directory, one at a time."""

    @abstractmethod
    def place(self, table: Table) -> str:
        """Where the table is, for messages."""

    @abstractmethod
    def has(self, table: Table) -> bool:
        """Is it there at all?"""

    @abstractmethod
    def column(self, table: Table) -> Column:
        """The table, its rows not read yet where that can be."""

    @abstractmethod
    def tensor(self, table: Table, *, mapped: bool) -> torch.Tensor:
        """The whole table; ``mapped`` leaves it on disk where that can be."""

    @abstractmethod
    def keywords(self) -> Ragged:
        """The keyword ids of each pair: pair i has ``values[offsets[i] : offsets[i + 1]]``."""


class PtReader(Reader):
    """Tables in .pt files of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def place(self, table: Table) -> str:
        """The file's name."""
        return table.file

    def has(self, table: Table) -> bool:
        """Is there such a file?"""
        return (self.directory / table.file).is_file()

    def column(self, table: Table) -> Column:
        """The table, mapped."""
        return self.tensor(table, mapped=True)

    def tensor(self, table: Table, *, mapped: bool) -> torch.Tensor:
        """The whole table."""
        value = load_pt(self.directory / table.file, mapped=mapped)
        if not isinstance(value, torch.Tensor) or not plain(value):
            kind = type(value).__name__ if not isinstance(value, torch.Tensor) else "unusual tensor"
            raise InvalidDataError(f"{table.file} must hold one tensor, found: {kind}")
        return value

    def keywords(self) -> Ragged:
        """The keyword ids of each pair, from lists or from a pair (offsets, values)."""
        return ragged(load_pt(self.directory / KEYWORDS.file, mapped=False), KEYWORDS.file)


class Hdf5Reader(Reader):
    """Tables in one HDF5 file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._kind = optional("h5py", extra="hdf5").Dataset

    def place(self, table: Table) -> str:
        """The file's name, and the dataset's in it."""
        return f"{HDF5}:{table.hdf5}"

    def has(self, table: Table) -> bool:
        """Is it in the file?"""
        return table.hdf5 in self._file

    def column(self, table: Table) -> Column:
        """The table, its rows still in the file."""
        found = self._file.get(table.hdf5)
        if not isinstance(found, self._kind):
            raise InvalidDataError(f"{self.place(table)} not found: write the file again")
        if found.dtype.kind not in "iufb":
            raise InvalidDataError(f"{self.place(table)} must hold numbers, found {found.dtype}")
        return found  # type: ignore[no-any-return]

    def tensor(self, table: Table, *, mapped: bool) -> torch.Tensor:
        """The whole table; mapped where it lies uncompressed in one piece."""
        column: Any = self.column(table)
        offset = column.id.get_offset() if mapped and column.size else None
        if offset is not None and column.dtype.isnative:
            path = Path(self._file.filename)  # "c": pages of the file, never written back
            return torch.from_numpy(np.memmap(path, column.dtype, "c", offset, column.shape))
        return read_rows(column, slice(None), self.place(table))

    def keywords(self) -> Ragged:
        """The keyword ids of each pair, one small dataset each."""
        group = self._file.get(KEYWORDS.hdf5)
        if group is None or isinstance(group, self._kind):
            raise InvalidDataError(f"{self.place(KEYWORDS)} not found: write the file again")
        try:
            lists = [group[str(i)][:].tolist() for i in range(len(group))]
        except (KeyError, OSError) as error:
            raise InvalidDataError(f"{self.place(KEYWORDS)} cannot be read ({error})") from error
        return ragged(lists, self.place(KEYWORDS))


@contextmanager
def reading(directory: Path, storage_format: str) -> Iterator[Reader]:
    """A reader of the directory, open as long as the block."""
    if storage_format == "pt":
        yield PtReader(directory)
        return
    path = directory / HDF5
    try:
        file = hdf5_library().File(path, "r")
    except OSError as error:
        raise InvalidDataError(
            f"{HDF5} cannot be read ({brief(error)}): it is damaged or not HDF5; write it again"
        ) from error
    with file:
        yield Hdf5Reader(file)


def resolve_format(directory: Path, storage_format: str) -> str:
    """The format asked for, or, for "auto", the one that is there; HDF5 first."""
    choice("Invalid storage_format: it", storage_format, FORMATS, error=ConfigError)
    has_hdf5 = (directory / HDF5).is_file()
    has_pt = any((directory / table.file).is_file() for table in TABLES)
    if storage_format != "auto":
        if not (has_hdf5 if storage_format == "hdf5" else has_pt):
            what = HDF5 if storage_format == "hdf5" else "*.pt"
            raise InvalidDataError(f"No dataset files found: {directory} has no {what}")
        if storage_format == "hdf5":
            hdf5_library()
        return storage_format
    if has_hdf5 and (not has_pt or _has_hdf5_library()):
        hdf5_library()
        return "hdf5"
    if has_pt:
        return "pt"
    raise InvalidDataError(f"No dataset files found: {directory} has neither {HDF5} nor *.pt")


def hdf5_library() -> ModuleType:
    """h5py, or an error that says how to get it."""
    try:
        return optional("h5py", extra="hdf5")  # type: ignore[no-any-return]
    except MissingExtraError as error:
        raise MissingHdf5Error(
            "h5py is required for HDF5, and h5py is not installed: pip install 'penstock[hdf5]'"
        ) from error


def _has_hdf5_library() -> bool:
    try:
        return bool(hdf5_library())
    except MissingHdf5Error:
        return False


def read_rows(column: Any, rows: slice, place: str) -> torch.Tensor:
    """Some rows of a column as a tensor of its dtype."""
    if isinstance(column, torch.Tensor):
        return column[rows]
    try:
        read = column[rows]
    except OSError as error:
        raise InvalidDataError(f"{place} cannot be read ({brief(error)})") from error
    return torch.from_numpy(np.ascontiguousarray(read, dtype=read.dtype.newbyteorder("=")))
