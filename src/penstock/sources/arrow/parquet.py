"""Rows of Parquet files, read by row groups."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import SourceError
from penstock.extras import optional
from penstock.fingerprints import sampled_blocks
from penstock.sources.files import read_exactly
from penstock.sources.zarr.stored import new_memory

MOST_SAMPLED_BYTES = 1 << 20


class RowGroup(NamedTuple):
    """Row group ``number`` of a file, and where its bytes are."""

    path: Path
    number: int
    samples: int
    offset: int
    nbytes: int


class ParquetRows:
    """One Parquet file, or all ``*.parquet`` files of a directory in the order of their names."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        folder = Path(path)
        files = sorted(folder.rglob("*.parquet")) if folder.is_dir() else [folder]
        if not files:
            raise SourceError(f"there are no .parquet files in {folder}")
        metadata = [_metadata(file) for file in files]
        self.schema = metadata[0].schema.to_arrow_schema()
        for file, each in zip(files, metadata, strict=True):
            if not each.schema.to_arrow_schema().equals(self.schema):
                raise SourceError(f"{file} has other columns than {files[0]}: they must agree")
        groups = zip(files, metadata, strict=True)
        self._groups = [group for file, each in groups for group in _row_groups(file, each)]
        self._ends = list(accumulate(group.samples for group in self._groups))
        self.samples = self._ends[-1] if self._ends else 0
        self.batch_samples = max((group.samples for group in self._groups), default=1)

    @property
    def seams(self) -> list[int]:
        """Where one file ends and the next begins: they need not continue each other."""
        pairs = zip(self._groups, self._groups[1:], self._ends, strict=False)
        found = {end for group, after, end in pairs if group.path != after.path}
        return sorted(found - {0, self.samples})

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """An Arrow table of rows ``start:stop``; whole row groups are decoded."""
        arrow = optional("pyarrow", extra="arrow")
        if start >= stop:
            return self.schema.empty_table().select(columns)
        first, last = bisect_right(self._ends, start), bisect_right(self._ends, stop - 1)
        parts = [_read(group, columns) for group in self._groups[first : last + 1]]
        begin = self._ends[first] - self._groups[first].samples
        return arrow.concat_tables(parts).slice(start - begin, stop - start)

    def stored_bytes(self) -> Iterator[bytes] | None:
        """The first bytes of a few row groups, as they are in the file."""
        return (_sampled(self._groups[number]) for number in sampled_blocks(len(self._groups)))


def _metadata(path: Path) -> Any:
    arrow = optional("pyarrow", extra="arrow")
    try:
        return optional("pyarrow.parquet", extra="arrow").read_metadata(path)
    except FileNotFoundError as error:
        raise SourceError(f"there is no file {path}") from error
    except (arrow.ArrowException, OSError) as error:
        raise SourceError(f"{path} is no readable Parquet file: {error}") from error


def _row_groups(path: Path, metadata: Any) -> Iterator[RowGroup]:
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(column) for column in range(group.num_columns)]
        nbytes = sum(column.total_compressed_size for column in columns)
        offset = min(c.dictionary_page_offset or c.data_page_offset for c in columns)
        yield RowGroup(path, number, group.num_rows, offset, nbytes)


def _read(group: RowGroup, columns: Sequence[str]) -> Any:
    arrow = optional("pyarrow", extra="arrow")
    parquet = optional("pyarrow.parquet", extra="arrow")
    try:
        with parquet.ParquetFile(group.path, memory_map=False) as file:
            # the caller's threads are the parallelism
            return file.read_row_group(group.number, columns=list(columns), use_threads=False)
    except (arrow.ArrowException, OSError) as error:
        raise SourceError(
            f"cannot read row group {group.number} of {group.path}: {error}; "
            "write or copy the file again"
        ) from error


def _sampled(group: RowGroup) -> bytes:
    raw = new_memory(min(group.nbytes, MOST_SAMPLED_BYTES))
    read_exactly(group.path, raw, group.offset)
    return raw.tobytes()
