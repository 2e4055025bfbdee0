"""The tables of a directory in memory, read once and shared by all who ask for them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from penstock.checks import InvalidDataError
from penstock.domains.steering.config import SteeringConfig
from penstock.domains.steering.integrity import first_of, reference_faults, shape_faults
from penstock.domains.steering.layout import HDF5, KEYWORDS, NEGATIVES, SPLIT_TABLES, TABLES
from penstock.domains.steering.reading import reading
from penstock.fingerprints import digest, row_bytes, sampled_blocks
from penstock.order import Indices, derive_key

Stamp: TypeAlias = tuple[tuple[int, ...], ...]
Key: TypeAlias = tuple[Path, str, bool, str]

MAP_ABOVE_BYTES = 10 * 2**30
VECTORS_A_PAIR = 15  # with its negatives and the tables behind them, about
TICK_NS = 20_000_000  # clocks of file systems tick every 4 to 10 ms: in one, writes look alike


@dataclass(frozen=True, eq=False)
class SteeringTables:
    """The tables every split shares, on one device.

    Args:
        stamp: Of the files they were read from.
    """

    tensors: Mapping[str, torch.Tensor]
    stamp: Stamp

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    # -- gathering: arrays on the CPU, tensors elsewhere

    @cached_property
    def on_cpu(self) -> bool:
        """Are they in the CPU's memory (or mapped into it)?"""
        return self["pair_index"].device.type == "cpu"

    def __reduce__(self) -> tuple[type[SteeringTables], tuple[object, ...]]:
        """Only what cannot be made anew goes to another process."""
        return SteeringTables, (self.tensors, self.stamp)

    def index(self, rows: Indices) -> Any:
        """Numbers where the tables are."""
        if self.on_cpu:
            return rows
        return torch.from_numpy(rows).to(self["pair_index"].device)

    def take(self, name: str, rows: Any) -> Any:
        """Rows of a table, in the shape of ``rows``."""
        if self.on_cpu:
            # seen anew each time: torch moves a tensor's memory when it goes to workers
            return self[name].numpy().take(rows, axis=0)
        table = self[name]
        return table.index_select(0, rows.reshape(-1)).view(*rows.shape, *table.shape[1:])

    def zeros(self, count: int) -> Any:
        """So many vectors of zeros."""
        vectors = self["question_embs"]
        if self.on_cpu:
            return np.zeros((count, vectors.shape[1]), np.float32)
        return vectors.new_zeros((count, vectors.shape[1]))

    # -- what they are

    @property
    def memory_bytes(self) -> int:
        """Bytes of all tables, mapped ones too."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the data: the same for .pt and HDF5, and after new negatives."""
        kept = sorted(self.tensors.keys() - {table.name for table in NEGATIVES})
        facts = {name: [list(self[name].shape), str(self[name].dtype)] for name in kept}
        return digest(
            facts,
            (
                row_bytes(self[name][row].cpu().numpy())
                for name in kept
                if self[name].device.type != "meta"
                for row in sampled_blocks(len(self[name]))
            ),
        )

    def with_negatives(self, directory: Path, storage_format: str) -> SteeringTables:
        """These tables with the negatives as they are on disk now, checked."""
        tensors = dict(self.tensors)
        device = tensors["hard_negatives"].device
        dimensions = {
            "pairs": len(tensors["pair_index"]),
            "negatives": tensors["hard_negatives"].shape[1],
        }
        with reading(directory, storage_format) as reader:
            fresh = {t.name: reader.tensor(t, mapped=False) for t in NEGATIVES}
            first_of(shape_faults(fresh, dimensions, reader.place))
        first_of(reference_faults(fresh | {"source_embs": tensors["source_embs"]}))
        tensors |= {name: tensor.to(device) for name, tensor in fresh.items()}
        return replace(self, tensors=tensors)


_loaded: weakref.WeakValueDictionary[Key, SteeringTables] = weakref.WeakValueDictionary()


def open_tables(
    directory: Path, storage_format: str, config: SteeringConfig, *, mapped: bool, device: str
) -> SteeringTables:
    """The tables of a directory, checked; those read before while somebody still holds them.

    Files that changed since are read again.
    """
    key = (directory.resolve(), storage_format, mapped, device)
    stamp = stamp_of(directory, storage_format)
    tables = _loaded.get(key)
    if tables is None or tables.stamp != stamp:
        tables = _read(directory, storage_format, config, mapped=mapped, device=device)
        _loaded[key] = tables
    else:  # the config may have changed, though the tables did not
        first_of(shape_faults(tables.tensors, dimensions_of(config), lambda table: table.file))
    return tables


def _read(
    directory: Path, storage_format: str, config: SteeringConfig, *, mapped: bool, device: str
) -> SteeringTables:
    stamp = _settled_stamp(directory, storage_format)
    negatives = {table.name for table in NEGATIVES}  # meant to be rewritten: never mapped
    with reading(directory, storage_format) as reader:
        tensors = {
            table.name: reader.tensor(table, mapped=mapped and table.name not in negatives)
            for table in TABLES
        }
        first_of(shape_faults(tensors, dimensions_of(config), reader.place))
        if not reader.has(KEYWORDS):
            raise InvalidDataError(f"{reader.place(KEYWORDS)} not found in {directory}")
    first_of(reference_faults(tensors))
    return SteeringTables({n: t.to(device) for n, t in tensors.items()}, stamp)


def read_split(directory: Path, storage_format: str, split: str, pairs: int) -> Indices:
    """The pair rows of a split, checked."""
    table = SPLIT_TABLES[split]
    with reading(directory, storage_format) as reader:
        place = reader.place(table)
        if not reader.has(table):
            raise InvalidDataError(f"Split file not found: {place} in {directory}")
        rows = reader.tensor(table, mapped=False)
        first_of(shape_faults({table.name: rows}, {}, reader.place))
    if not len(rows):
        raise InvalidDataError(f"{place} has no pairs: a split needs at least one")
    array: Indices = rows.numpy()
    outside = (array < 0) | (array >= pairs)
    if outside.any():
        at = int(outside.argmax())
        raise InvalidDataError(
            f"Split indices reference pair {array[at]}, but only {pairs} pairs exist "
            f"({place} row {at})"
        )
    return array


def maps_by_default(embedding_dim: int, pairs: int) -> bool:
    """Is a directory of so many pairs too large to be read into memory unasked?

    >>> maps_by_default(768, 10**6), maps_by_default(64, 100)
    (True, False)
    """
    return embedding_dim * pairs * 4 * VECTORS_A_PAIR > MAP_ABOVE_BYTES


def dimensions_of(config: SteeringConfig) -> dict[str, int]:
    """Sizes that the config decides."""
    return {"dim": config.embedding_dim, "negatives": config.n_neg}


def stamp_of(directory: Path, storage_format: str) -> Stamp:
    """Size, identity and times of the files of the shared tables; () for one that is missing."""
    files = [HDF5] if storage_format == "hdf5" else [table.file for table in TABLES]
    return tuple(_stamp(directory / file) for file in files)


def _settled_stamp(directory: Path, storage_format: str) -> Stamp:
    """A stamp that any later write will change: where one was just written, a moment is waited."""
    newest = max(changed for *_, changed in stamp_of(directory, storage_format))
    left = newest + TICK_NS - time.time_ns()
    time.sleep(min(max(left, 0), TICK_NS) / 1e9)
    return stamp_of(directory, storage_format)


def negatives_stamp(directory: Path, storage_format: str) -> int:
    """One number for the state of the files that hold the negatives."""
    files = [HDF5] if storage_format == "hdf5" else [table.file for table in NEGATIVES]
    parts = [part for file in files for part in _stamp(directory / file)]
    return derive_key(0, *parts) >> 1  # of 63 bits: it travels as int64


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return (0,)
    return stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns
