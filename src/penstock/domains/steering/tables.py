"""The tables of a directory in memory: read once, shared by its datasets, gathered into batches."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from penstock.checks import InvalidDataError
from penstock.domains.steering import layout
from penstock.domains.steering.curriculum import SteeringConfig
from penstock.domains.steering.files import Files, Stamp
from penstock.fingerprints import digest, row_bytes, sampled_blocks
from penstock.order import Indices, derive_key

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
    layout.raise_first(layout.split_faults(place, table, rows, pairs))
    array: Indices = rows.numpy()
    return array


def negatives_stamp(files: Files) -> int:
    """Return one number for the state of the files that hold the negatives."""
    stamps = files.stamp(layout.NEGATIVES)
    return derive_key(0, *(part for stamp in stamps for part in stamp)) >> 1  # fits into int64
