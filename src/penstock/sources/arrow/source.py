"""Columns of a table as a source of samples: a sample is a row."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.fingerprints import digest, field_facts, row_bytes, sampled_blocks
from penstock.sources.arrow.columns import fields_of, values_of
from penstock.sources.arrow.parquet import ParquetRows
from penstock.sources.arrow.tables import DatasetRows, MappedRows, MemoryRows, TableRows
from penstock.sources.base import Arrays, Field
from penstock.sources.gathering import block_runs
from penstock.sources.memory import samples_per_block
from penstock.sources.requests import (
    check_range,
    checked_indices,
    checked_names,
    checked_path,
    destinations,
)


class ArrowSource:
    """Numeric columns, and lists of a fixed size, of a table; each column is a field.

    Args:
        table: A pyarrow table, a Hugging Face dataset, a Parquet file or a directory of them, or
            an Arrow file (one written with compression is decoded into memory as a whole).
        columns: Names of columns; all of them if None.

    >>> import pyarrow
    >>> source = ArrowSource(pyarrow.table({"x": [1.5, 2.5], "word": ["a", "b"]}), columns=["x"])
    >>> source.view(0, 2)["x"].tolist()
    [1.5, 2.5]
    """

    def __init__(self, table: Any, *, columns: Sequence[str] | None = None) -> None:
        names = checked_names("columns", columns)
        self._rows = _rows_of(table)
        self._fields = fields_of(self._rows.schema, names)

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> shape and dtype of one sample."""
        return self._fields

    @property
    def block_samples(self) -> int:
        """Rows in a row group, or in about a megabyte where any range costs the same."""
        sample_bytes = sum(field.nbytes for field in self._fields.values())
        return self._rows.batch_samples or samples_per_block(len(self), sample_bytes)

    def __len__(self) -> int:
        return int(self._rows.samples)

    def __repr__(self) -> str:
        return f"ArrowSource({len(self)} samples of {list(self._fields)})"

    @property
    def seams(self) -> list[int]:
        """Where rows do not follow each other: between files, and where they were selected."""
        return list(getattr(self._rows, "seams", ()))

    def fingerprint(self) -> str:
        """Identity of the data: columns, length and the bytes of a few blocks."""
        facts = [len(self), field_facts(self._fields), self._rows.batch_samples]
        stored = self._rows.stored_bytes()
        return digest(facts, self._sampled_rows() if stored is None else stored)

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``."""
        check_range(len(self), start, stop)
        rows = dict(destinations(self._fields, out, stop - start))
        for name, first, values in self._values(start, stop, list(rows)):
            np.copyto(rows[name][first : first + len(values)], values)

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples; each block is decoded once."""
        chosen = checked_indices(len(self), indices)
        rows = dict(destinations(self._fields, out, len(chosen)))
        for places in block_runs(chosen, self.block_samples):
            wanted = chosen[places]
            start, stop = int(wanted[0]), int(wanted[-1]) + 1
            block = {n: np.empty((stop - start, *r.shape[1:]), r.dtype) for n, r in rows.items()}
            self.read(start, stop, block)
            for name, values in block.items():
                rows[name][places] = values[wanted - start]

    def view(self, start: int, stop: int) -> Arrays | None:
        """Samples ``start:stop`` in the table's own memory, where they are in one piece of it."""
        check_range(len(self), start, stop)
        if self._rows.batch_samples is not None or start == stop:
            return None
        views = {}
        for name, first, values in self._values(start, stop, list(self._fields)):
            if first or len(values) < stop - start or values.flags.writeable:
                return None
            views[name] = values
        return views

    def _values(
        self, start: int, stop: int, names: list[str]
    ) -> list[tuple[str, int, npt.NDArray[np.generic]]]:
        """Name, place and values of each piece of rows ``start:stop``."""
        if start == stop or not names:
            return []
        table = self._rows.rows(start, stop, names)
        pieces = []
        for name in names:
            first = 0
            for chunk in table.column(name).chunks:
                pieces.append((name, first, values_of(chunk, self._fields[name], name)))
                first += len(chunk)
        return pieces

    def _sampled_rows(self) -> list[bytes]:
        block = self.block_samples
        starts = [number * block for number in sampled_blocks(-(-len(self) // block))]
        names = list(self._fields)
        spans = [(start, min(len(self), start + block)) for start in starts]
        return [row_bytes(values) for span in spans for _, _, values in self._values(*span, names)]


def _rows_of(table: Any) -> TableRows:
    if isinstance(table, str | os.PathLike):
        path = checked_path(table)
        is_parquet = path.is_dir() or path.suffix in (".parquet", ".pq")
        return ParquetRows(path) if is_parquet else MappedRows(path)
    if type(table).__module__.startswith("datasets."):
        return DatasetRows(table)
    if type(table).__module__.startswith("pyarrow."):
        return MemoryRows(table)
    raise SourceError(
        f"{type(table).__name__} is no table: give a pyarrow table, a Hugging Face dataset, "
        "or the path of Parquet or Arrow files"
    )
