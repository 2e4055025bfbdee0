"""Files of a steering dataset: .pt files or one HDF5 file, read so that nothing in them can run."""

from __future__ import annotations

import json
import logging
import pickle
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import a_path, choice
from penstock.atomic_files import replace_text, replacing
from penstock.checks import InvalidDataError
from penstock.domains.steering import layout
from penstock.domains.steering.curriculum import read_config
from penstock.errors import ConfigError, MissingExtraError
from penstock.extras import optional

log = logging.getLogger("penstock")

FORMATS: Final = ("auto", "pt", "hdf5")
COMPRESSIONS: Final = ("gzip", "lzf", None)
# what torch.load raises on bytes that are not a .pt file, apart from UnpicklingError
_UNREADABLE: Final = (
    *(RuntimeError, OSError, EOFError, ValueError),
    *(LookupError, AttributeError, TypeError, AssertionError),
)

# offsets and values: list i is values[offsets[i] : offsets[i + 1]]
IdLists: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
Stamp: TypeAlias = tuple[tuple[int, ...], ...]  # of each file, to see whether it changed


class MissingHdf5Error(MissingExtraError, ValueError):
    """HDF5 was requested, and h5py is not installed."""


@dataclass(frozen=True, slots=True)
class Files:
    """The tables of a directory, in .pt files or in one HDF5 file.

    Args:
        directory: Of the dataset.
        storage_format: "pt" or "hdf5".
    """

    directory: Path
    storage_format: str

    @classmethod
    def of(cls, directory: Path, storage_format: str) -> Files:
        """Return the files in the format requested, or for "auto" the one found, HDF5 first."""
        choice("Invalid storage_format: it", storage_format, FORMATS, error=ConfigError)
        has_hdf5 = (directory / layout.HDF5).is_file()
        has_pt = any((directory / table.file).is_file() for table in layout.TABLES)
        if storage_format == "auto":  # HDF5 is preferred, but needs its library
            preferred = has_hdf5 and (not has_pt or find_spec("h5py") is not None)
            storage_format = "hdf5" if preferred else "pt"
        if not (has_hdf5 if storage_format == "hdf5" else has_pt):
            what = layout.HDF5 if storage_format == "hdf5" else "*.pt"
            raise InvalidDataError(f"No dataset files found: {directory} has no {what}")
        files = cls(directory, storage_format)
        if storage_format == "hdf5":
            files._hdf5().close()  # raises if it is damaged
        return files

    def locate(self, table: layout.Table) -> str:
        """Return where a table is, for messages."""
        return table.file if self.storage_format == "pt" else f"{layout.HDF5}:{table.hdf5}"

    def has(self, table: layout.Table) -> bool:
        """Return whether a table exists."""
        if self.storage_format == "pt":
            return (self.directory / table.file).is_file()
        with self._hdf5() as file:
            return table.hdf5 in file

    def tensor(self, table: layout.Table, *, mapped: bool = False) -> torch.Tensor:
        """Return a whole table; ``mapped`` maps it into memory where that is possible."""
        if self.storage_format == "hdf5":
            return self._hdf5_tensor(table, mapped)
        value = load_pt(self.directory / table.file, mapped=mapped)
        if not isinstance(value, torch.Tensor):
            kind = type(value).__name__
        elif value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
            kind = "unusual tensor"
        else:
            return value
        raise InvalidDataError(f"{table.file} must hold one tensor, found: {kind}")

    def _hdf5_tensor(self, table: layout.Table, mapped: bool) -> torch.Tensor:
        place = self.locate(table)
        with self._hdf5() as file:
            found = file.get(table.hdf5)
            if found is None or not hasattr(found, "dtype"):
                raise InvalidDataError(f"{place} not found: write the file again")
            if found.dtype.kind not in "iufb":
                raise InvalidDataError(f"{place} must hold numbers, found {found.dtype}")
            offset = found.id.get_offset() if mapped and found.size else None
            if offset is not None and found.dtype.isnative:
                # "c": torch needs writable memory; writes never reach the file
                array = np.memmap(file.filename, found.dtype, "c", offset, found.shape)
                return torch.from_numpy(array)
            try:
                read = found[...]
            except OSError as error:
                raise InvalidDataError(f"{place} cannot be read ({_brief(error)})") from error
        return torch.from_numpy(np.ascontiguousarray(read, dtype=read.dtype.newbyteorder("=")))

    def keywords(self) -> IdLists:
        """Return the keyword ids of each pair.

        They are lists or (offsets, values) in a .pt file, and one small dataset each in HDF5.
        """
        place = self.locate(layout.KEYWORDS)
        if self.storage_format == "pt":
            return id_lists(load_pt(self.directory / place, mapped=False), place)
        with self._hdf5() as file:
            group = file.get(layout.KEYWORDS.hdf5)
            if group is None or hasattr(group, "dtype"):
                raise InvalidDataError(f"{place} not found: write the file again")
            try:
                lists = [group[str(i)][:].tolist() for i in range(len(group))]
            except (KeyError, OSError) as error:
                raise InvalidDataError(f"{place} cannot be read ({error})") from error
        return id_lists(lists, place)

    def stamp(self, tables: Iterable[layout.Table]) -> Stamp:
        """Return size, identity and times of the files of tables; (0,) for one that is missing."""
        files = [layout.HDF5] if self.storage_format == "hdf5" else [each.file for each in tables]
        stamps: list[tuple[int, ...]] = []
        for file in files:
            try:
                stat = (self.directory / file).stat()
            except FileNotFoundError:
                stamps.append((0,))
            else:
                stamps.append((stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns))
        return tuple(stamps)

    def _hdf5(self) -> Any:
        try:
            return hdf5_library().File(self.directory / layout.HDF5, "r")
        except OSError as error:
            raise InvalidDataError(
                f"{layout.HDF5} cannot be read ({_brief(error)}): it is damaged; write it again"
            ) from error


def hdf5_library() -> ModuleType:
    """Return h5py; raise `MissingHdf5Error` if it is not installed."""
    try:
        return optional("h5py", extra="hdf5")  # type: ignore[no-any-return]
    except MissingExtraError as error:
        raise MissingHdf5Error(
            "h5py is required for HDF5, and h5py is not installed: pip install 'penstock[hdf5]'"
        ) from error


def load_pt(path: Path, *, mapped: bool) -> Any:
    """Return the contents of a .pt file: tensors, numbers and lists; other objects are refused."""
    if not path.is_file():
        raise InvalidDataError(f"{path.name} not found in {path.parent}")
    try:
        with warnings.catch_warnings():  # of pickle protocols, which raise an error anyway
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise InvalidDataError(
            f"{path.name} is refused: it holds more than tensors, numbers and lists, and loading "
            "it could run code; write it again with torch.save of plain tensors"
        ) from error
    except _UNREADABLE as error:
        if mapped and "mmap can only be used" in str(error):  # a file of an old torch, not a zip
            return load_pt(path, mapped=False)
        raise InvalidDataError(
            f"{path.name} cannot be read ({_brief(error)}): it is truncated or not a .pt file; "
            "write it again"
        ) from error


def id_lists(value: Any, place: str) -> IdLists:
    """Return lists of ids, or a pair of tensors (offsets, values), as offsets and values.

    >>> id_lists([[4, 5], [], [6]], "keywords")
    (array([0, 2, 2, 3]), array([4, 5, 6]))
    """
    pair = isinstance(value, list | tuple) and len(value) == 2
    if pair and all(isinstance(each, torch.Tensor) for each in value):
        offsets, values = value
        fits = offsets.dtype == values.dtype == torch.int64 and offsets.ndim == values.ndim == 1
        if not fits or offsets[:1].tolist() != [0] or offsets[-1] != len(values):
            raise InvalidDataError(f"{place} must be int64 offsets from 0 to the number of values")
        if bool((offsets.diff() < 0).any()):
            raise InvalidDataError(f"{place} has offsets that decrease")
        return offsets.numpy(), values.numpy()
    if not isinstance(value, list):
        raise InvalidDataError(f"{place} must hold a list of lists, found {type(value).__name__}")
    for row, ids in enumerate(value):
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise InvalidDataError(f"{place} row {row} must be a list of integers, found {ids!r}")
    lengths = np.fromiter(map(len, value), np.int64, len(value))
    flat = np.fromiter((i for ids in value for i in ids), np.int64, int(lengths.sum()))
    return np.concatenate([[0], np.cumsum(lengths)]), flat


def _brief(error: BaseException) -> str:
    return str(error).split("\n")[0][:120] or type(error).__name__


# -- conversion


def convert_to_hdf5(
    dataset_dir: str | PathLike[str],
    target_dir: str | PathLike[str] | None = None,
    *,
    compression: str | None = "gzip",
) -> Path:
    """Write dataset.h5 from the .pt files of a directory, and return its path.

    The file appears under its name when it is complete. Tables are mapped into memory, so that
    memory does not grow with them.

    Args:
        dataset_dir: The directory with the .pt files.
        target_dir: Gets dataset.h5 and config.json; by default dataset.h5 is written into
            ``dataset_dir``.
        compression: "gzip", "lzf", or None. Only uncompressed tables can be mapped into memory.
    """
    choice("compression", compression, COMPRESSIONS)
    library = hdf5_library()
    source = a_path("dataset_dir", dataset_dir)
    target = source if target_dir is None else a_path("target_dir", target_dir)
    config = read_config(source)
    reader = Files(source, "pt")
    target.mkdir(parents=True, exist_ok=True)
    with replacing(target / layout.HDF5) as new, library.File(new, "x", libver="latest") as file:
        all_tables = (*layout.TABLES, *layout.SPLIT_TABLES.values())
        tensors = {table.name: reader.tensor(table, mapped=True) for table in all_tables}
        layout.raise_first(layout.shape_faults(tensors, config.sizes, reader.locate))
        for table in all_tables:
            array = tensors[table.name].numpy()
            used = compression if array.size else None
            file.create_dataset(table.hdf5, data=array, compression=used)
        _write_keywords(file, reader.keywords(), len(tensors["pair_index"]))
    if target_dir is not None:
        settings = dict(config.raw) | {"storage_format": "hdf5"}
        replace_text(target / layout.CONFIG, json.dumps(settings, indent=2))
    log.info("wrote %s: %.1f MB", layout.HDF5, (target / layout.HDF5).stat().st_size / 1e6)
    return target / layout.HDF5


def _write_keywords(file: Any, keywords: IdLists, pairs: int) -> None:
    offsets, values = keywords
    if len(offsets) - 1 != pairs:
        found = f"one for each pair, found {len(offsets) - 1}"
        raise InvalidDataError(f"{layout.KEYWORDS.file} must have {pairs} lists, {found}")
    group = file.create_group(layout.KEYWORDS.hdf5)
    for row, ids in enumerate(np.split(values.astype(np.int32), offsets[1:-1])):
        group.create_dataset(str(row), data=ids)
