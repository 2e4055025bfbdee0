"""Columns of a table as a source: a sample is a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.extras import optional
from penstock.fingerprints import digest, field_facts, row_bytes, sampled_blocks
from penstock.registry import did_you_mean
from penstock.sources.arrow.tables import open_rows
from penstock.sources.base import BaseSource
from penstock.sources.contract import Arrays, Field, Indices, Rows, checked_names
from penstock.sources.ragged_rows import items_of, ragged_fields
from penstock.sources.storage import reading

OFFSET_ROWS = 1 << 16  # whose lengths are read together


class ArrowSource(BaseSource):
    """Columns of numbers, lists and strings of a table; each column is a field.

    Lists of a fixed size are arrays. Other lists, and strings (as bytes), are ragged fields: their
    lengths are read when they are first needed; those of Parquet files are cached.

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
        self._table = open_rows(table)
        with reading("the names of the columns", "pyarrow", errors=(UnicodeError,)):
            fields = _fields_of(self._table.schema, names)
        super().__init__(self._table.samples, fields)
        self.in_flight, self.seams = self._table.in_flight, list(self._table.seams)
        if self._table.batch_samples is None:  # lengths are stored, and cost nothing
            for name in ragged_fields(self, self._fields):
                self.offsets(name)

    @property
    def block_samples(self) -> int:
        """Rows in a row group, or in about a megabyte where any range costs the same."""
        return self._table.batch_samples or super().block_samples

    def offsets(self, name: str) -> Indices:
        """Return where each row's items of a column of lists or strings begin.

        Args:
            name: The column.
        """
        if name not in self._offsets and ragged_fields(self, [name]):
            found = self._table.cached_index(name, partial(self._read_offsets, name))
            return self._offsets.setdefault(name, found["offsets"])
        return super().offsets(name)

    def _read_offsets(self, name: str) -> dict[str, Indices]:
        """Return the offsets of a ragged column; reads it completely, block by block."""
        lengths = [np.zeros(1, np.int64)]
        step = self._table.batch_samples or OFFSET_ROWS
        for start in range(0, len(self), step):
            table = self._table.rows(start, min(start + step, len(self)), [name])
            lengths += [lengths_in(chunk, name) for chunk in table.column(name).chunks]
        return {"offsets": np.cumsum(np.concatenate(lengths))}

    def fingerprint(self) -> str:
        """Return an identity of the data: columns, length and the bytes of a few blocks."""
        facts = [len(self), field_facts(self._fields), self._table.batch_samples]
        return digest(facts, self._table.stored_bytes() or self._sampled())

    def _sampled(self) -> Iterator[bytes]:
        for number in sampled_blocks(-(-len(self) // self.block_samples)):
            start = number * self.block_samples
            stop = min(len(self), start + self.block_samples)
            for _, _, values in self._pieces(start, stop, list(self._fields)):
                yield row_bytes(values)
            for name in ragged_fields(self, self._fields):
                yield row_bytes(self.offsets(name)[start : stop + 1])

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        try:
            for name, first, values in self._pieces(start, stop, list(out)):
                np.copyto(out[name][first : first + len(values)], values)
        except (ValueError, LookupError, ArithmeticError, MemoryError):
            self._table.verify()  # values of pages that changed may fit nowhere
            raise
        self._table.verify()  # also afterwards: mapped pages change with the file

    def _view(self, start: int, stop: int) -> Arrays | None:
        if self._table.batch_samples is not None or start == stop:
            return None
        views = {}
        for name, first, values in self._pieces(start, stop, list(self._fields)):
            # several pieces are not contiguous, and a writable array is a copy
            ragged = self._fields[name].ragged
            rows = items_of(self, name, start, stop) if ragged else stop - start
            if first or len(values) < rows or values.flags.writeable:
                return None
            views[name] = values
        return views

    def _pieces(self, start: int, stop: int, names: list[str]) -> Iterator[tuple[str, int, Rows]]:
        """Yield the name, first row and values of each contiguous piece of rows ``start:stop``."""
        if start == stop or not names:
            return
        table = self._table.rows(start, stop, names)
        for name in names:
            first = 0
            for chunk in table.column(name).chunks:
                values = _values_of(chunk, self._fields[name], name)
                yield name, first, values
                first += len(values)


def _fields_of(schema: Any, columns: Sequence[str] | None) -> dict[str, Field]:
    """Return the chosen columns (all of them if None) as fields."""
    names = list(schema.names) if columns is None else list(columns)
    if not names:
        raise SourceError("a table without columns has no samples: name some with columns=[...]")
    fields: dict[str, Field] = {}
    for name in names:
        if name not in schema.names:
            raise SourceError(f"the table has no column {name!r}{did_you_mean(name, schema.names)}")
        field = field_of(schema.field(name).type)
        if field is None:
            usable = [n for n in schema.names if field_of(schema.field(n).type) is not None]
            raise SourceError(
                f"column {name!r} holds {schema.field(name).type}, which cannot be a field: "
                f"leave it out with columns={usable}, or convert it to numbers, strings, or lists "
                "of numbers"
            )
        fields[name] = field
    return fields


def field_of(arrow_type: Any) -> Field | None:
    """Return the field of an Arrow type, or None if it has none.

    >>> import pyarrow
    >>> field_of(pyarrow.list_(pyarrow.float32(), 3))
    Field(shape=(3,), dtype=dtype('float32'))
    >>> field_of(pyarrow.string())
    Field(shape=(), dtype=dtype('uint8'), ragged=True)
    """
    arrow = optional("pyarrow", extra="arrow")
    types = arrow.types
    if isinstance(arrow_type, arrow.BaseExtensionType):
        return _field_of_extension(arrow_type)
    if types.is_fixed_size_list(arrow_type):
        inner = field_of(arrow_type.value_type)
        if inner is None or inner.ragged:
            return None
        return Field((arrow_type.list_size, *inner.shape), inner.dtype)
    if is_bytes(arrow_type):
        return Field((), np.dtype(np.uint8), ragged=True)
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        inner = field_of(arrow_type.value_type)
        return None if inner is None or inner.ragged else replace(inner, ragged=True)
    if types.is_timestamp(arrow_type):
        return Field((), np.dtype(f"M8[{arrow_type.unit}]"))
    if types.is_duration(arrow_type):
        return Field((), np.dtype(f"m8[{arrow_type.unit}]"))
    is_plain = (types.is_boolean, types.is_integer, types.is_floating)
    if any(check(arrow_type) for check in is_plain):
        return Field((), np.dtype(arrow_type.to_pandas_dtype()))
    return None


def _field_of_extension(arrow_type: Any) -> Field | None:
    """Return the field of a tensor type: Arrow's own, or Array2D to Array5D of Hugging Face."""
    shape = getattr(arrow_type, "shape", None)
    if shape is None or any(size is None for size in shape):
        return None
    leaf = arrow_type.storage_type
    while hasattr(leaf, "value_type"):
        leaf = leaf.value_type
    inner = field_of(leaf)
    return inner and Field(tuple(shape), inner.dtype)


def _values_of(array: Any, field: Field, name: str) -> Rows:
    """Return the values of an Arrow array in its own memory; booleans, which are bits, copied."""
    arrow = optional("pyarrow", extra="arrow")
    if field.ragged:
        _check_no_nulls(array, name)
        if is_bytes(array.type):
            return _bytes_of(array)
        return _values_of(array.flatten(), Field(field.shape, field.dtype), name)
    samples = len(array)
    if isinstance(array.type, arrow.BaseExtensionType):
        array = array.storage
    while hasattr(array.type, "value_type"):
        _check_no_nulls(array, name)
        lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise SourceError(
                f"column {name!r} holds lists of {lengths[0]} and of {lengths[-1]} items: "
                "only lists of one length can be samples"
            )
        array = array.flatten()
    _check_no_nulls(array, name)
    if len(array) != samples * prod(field.shape):
        raise SourceError(f"column {name!r} holds lists of lengths other than {field.shape}")
    values: Rows = array.to_numpy(zero_copy_only=array.type != arrow.bool_())
    return values.reshape(samples, *field.shape)


def is_bytes(arrow_type: Any) -> bool:
    """Return whether values of an Arrow type are strings or bytes of any length."""
    types = optional("pyarrow", extra="arrow").types
    checks = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(check(arrow_type) for check in checks)


def lengths_in(array: Any, name: str) -> Indices:
    """Return the number of items of each list, or of bytes of each string."""
    _check_no_nulls(array, name)
    compute = optional("pyarrow.compute", extra="arrow")
    count = compute.binary_length if is_bytes(array.type) else compute.list_value_length
    lengths: Indices = count(array).to_numpy().astype(np.int64)
    if len(lengths) and int(lengths.min()) < 0:
        raise SourceError(
            f"column {name!r} has a row of {int(lengths.min())} items: the file is damaged; write "
            "or copy it again"
        )
    return lengths


def _bytes_of(array: Any) -> Rows:
    """Return the bytes of all strings of an Arrow array, in its own memory."""
    _, index, content = array.buffers()
    first = last = 0
    if len(array):
        wide = str(array.type).startswith("large")
        ends = np.frombuffer(index, np.int64 if wide else np.int32)[array.offset :]
        first, last = int(ends[0]), int(ends[len(array)])
    values = np.frombuffer(content or b"", np.uint8)[first:last]
    values.flags.writeable = False
    return values


def _check_no_nulls(array: Any, name: str) -> None:
    if array.null_count:
        raise SourceError(
            f"column {name!r} has {array.null_count} missing values among {len(array)}: "
            "fill them first, or choose other columns with columns=[...]"
        )
