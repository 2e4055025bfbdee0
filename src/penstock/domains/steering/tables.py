"""The tables of a directory: .pt files or one HDF5 file, read so that nothing in them can run."""

from __future__ import annotations

import json
import logging
import pickle
import time
import warnings
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
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
from penstock.domains.steering.layout import SteeringConfig, read_config
from penstock.errors import ConfigError, MissingExtraError, first_line
from penstock.extras import optional
from penstock.fingerprints import digest, row_bytes, sampled_blocks
from penstock.order import Indices, derive_key

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
            if not hasattr(found, "shape"):  # missing, or a group
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
                raise InvalidDataError(f"{place} cannot be read ({first_line(error)})") from error
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
            if not hasattr(group, "keys"):  # missing, or an array
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
                f"{layout.HDF5} cannot be read ({first_line(error)}): it is damaged; write it again"
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
            f"{path.name} cannot be read ({first_line(error)}): it is truncated or not a .pt file; "
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


TICK_NS = 20_000_000  # file times advance every 4 to 10 ms: two writes within one look the same
STEERING = (None, "steering_centroid", "steering_keyword_weighted", "steering_residual")


@dataclass(frozen=True, eq=False)
class SteeringTables:
    """The tables that all splits share, on one device.

    Args:
        tensors: By name.
        stamp: Sizes and times of the files they were read from.
    """

    tensors: Mapping[str, torch.Tensor]
    stamp: Stamp

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __reduce__(self) -> tuple[type[SteeringTables], tuple[object, ...]]:
        """Leave out cached properties, which the other process computes again."""
        return SteeringTables, (self.tensors, self.stamp)

    # -- batches: numpy arrays on the CPU, tensors on other devices

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the tables are in the CPU's memory, or mapped into it."""
        return self["pair_index"].device.type == "cpu"

    def batch(self, rows: Indices, variants: Indices) -> dict[str, torch.Tensor]:
        """Return the nine fields of a batch, one operation for each.

        On the CPU numpy gathers, in the calling thread: torch's thread pool is one and a half
        times as fast on idle cores, and stalls for milliseconds on busy ones.

        Args:
            rows: Of the pairs.
            variants: The steering variant of each pair.
        """
        here = self._index(rows)
        pairs, negatives = self._take("pair_index", here), self._take("hard_negatives", here)
        fields = {
            "question_emb": self._take("question_embs", pairs[:, 0]),
            "target_source_emb": self._take("source_embs", pairs[:, 1]),
            "steering": self._steering(rows, variants),
            "negative_embs": self._take("source_embs", negatives),
            "cluster_id": self._take("pair_cluster_id", here),
            "relevance": self._take("pair_relevance", here),
            "centroid_distance": self._take("centroid_distances", here),
            "steering_variant": self._index(variants),
            "negative_tiers": self._take("negative_tiers", here),
        }
        if self.on_cpu:
            return {name: torch.from_numpy(field) for name, field in fields.items()}
        return fields

    def _steering(self, rows: Indices, variants: Indices) -> Any:
        first = int(variants[0]) if len(variants) else 0
        name = STEERING[first]
        if name is not None and (variants == first).all():
            return self._take(name, self._index(rows))
        shape = len(rows), self["question_embs"].shape[1]
        like = self["question_embs"]
        out: Any = np.zeros(shape, np.float32) if self.on_cpu else like.new_zeros(shape)
        for variant, name in enumerate(STEERING):
            where = np.flatnonzero(variants == variant)
            if name is not None and where.size:
                out[self._index(where)] = self._take(name, self._index(rows[where]))
        return out

    def _index(self, rows: Indices) -> Any:
        return rows if self.on_cpu else torch.from_numpy(rows).to(self["pair_index"].device)

    def _take(self, name: str, rows: Any) -> Any:
        table = self[name]
        if self.on_cpu:
            # numpy() at every call: torch moves a tensor's memory when it is sent to workers
            return table.numpy().take(rows, axis=0)
        return table.index_select(0, rows.reshape(-1)).view(*rows.shape, *table.shape[1:])

    # -- contents

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the data: the same for .pt and HDF5, and after new negatives."""
        names = sorted(self.tensors.keys() - {table.name for table in layout.NEGATIVES})
        facts = {name: [list(self[name].shape), str(self[name].dtype)] for name in names}
        rows = (
            row_bytes(self[name][row].cpu().numpy())
            for name in names
            if self[name].device.type != "meta"
            for row in sampled_blocks(len(self[name]))
        )
        return digest(facts, rows)

    def with_negatives(self, files: Files) -> SteeringTables:
        """Return these tables with the negatives that are on disk now, checked."""
        old = self["hard_negatives"]
        sizes = {"pairs": len(self["pair_index"]), "negatives": old.shape[1]}
        new = {table.name: files.tensor(table) for table in layout.NEGATIVES}
        layout.raise_first(layout.shape_faults(new, sizes, files.locate))
        known = new | {"source_embs": self["source_embs"]}
        layout.raise_first(layout.reference_faults(known, files.locate))
        on_device = {name: tensor.to(old.device) for name, tensor in new.items()}
        return replace(self, tensors={**self.tensors, **on_device})


# Datasets of one directory share its tables as long as one of them is alive.
_loaded: weakref.WeakValueDictionary[Any, SteeringTables] = weakref.WeakValueDictionary()


def open_tables(
    files: Files, config: SteeringConfig, *, mapped: bool, device: str
) -> SteeringTables:
    """Return the checked tables of a directory, shared with other datasets of it.

    Files that changed since they were read are read again.

    Args:
        files: Of the directory.
        config: Of the directory.
        mapped: Map the tables into memory instead of reading them.
        device: Where the tables are held.
    """
    key = (files.directory.resolve(), files.storage_format, mapped, device)
    tables = _loaded.get(key)
    if tables is None or tables.stamp != files.stamp(layout.TABLES):
        tables = _loaded[key] = _read(files, config, mapped=mapped, device=device)
    else:  # the config may have changed although the tables did not
        layout.raise_first(layout.shape_faults(tables.tensors, config.sizes, files.locate))
    return tables


def _read(files: Files, config: SteeringConfig, *, mapped: bool, device: str) -> SteeringTables:
    newest = max(changed for *_, changed in files.stamp(layout.TABLES))
    # wait until any later write is sure to change the stamp
    time.sleep(min(max(newest + TICK_NS - time.time_ns(), 0), TICK_NS) / 1e9)
    stamp = files.stamp(layout.TABLES)
    # negatives may be rewritten during training, so they are never mapped
    tensors = {
        table.name: files.tensor(table, mapped=mapped and table not in layout.NEGATIVES)
        for table in layout.TABLES
    }
    layout.raise_first(layout.shape_faults(tensors, config.sizes, files.locate))
    if not files.has(layout.KEYWORDS):
        raise InvalidDataError(f"{files.locate(layout.KEYWORDS)} not found in {files.directory}")
    # before the first batch: a wrong row number would silently read another vector
    layout.raise_first(layout.reference_faults(tensors, files.locate))
    return SteeringTables({n: t.to(device) for n, t in tensors.items()}, stamp)


def read_split(files: Files, split: str, pairs: int) -> Indices:
    """Return the checked pair rows of a split of a directory with ``pairs`` pairs."""
    table = layout.SPLIT_TABLES[split]
    place = files.locate(table)
    if not files.has(table):
        raise InvalidDataError(f"Split file not found: {place} in {files.directory}")
    rows = files.tensor(table)
    layout.raise_first(layout.shape_faults({table.name: rows}, {}, files.locate))
    layout.raise_first(layout.split_faults(place, rows, pairs))
    array: Indices = rows.numpy()
    return array


def negatives_stamp(files: Files) -> int:
    """Return one number for the state of the files that hold the negatives."""
    stamps = files.stamp(layout.NEGATIVES)
    return derive_key(0, *(part for stamp in stamps for part in stamp)) >> 1  # fits into int64
