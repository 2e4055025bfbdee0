"""The rows of a table by ranges: in memory, mapped Arrow files, Hugging Face datasets, Parquet."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.arguments import a_path
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.fingerprints import sampled_blocks
from penstock.sources.cache import Index, remembered
from penstock.sources.storage import RangeFile, StoredFile, new_memory, read_exactly

MOST_SAMPLED_BYTES = 1 << 20


class MemoryRows:
    """A pyarrow table in memory, and the base class of the others.

    A table can be pickled, and all its methods may be called from any thread.

    Attributes:
        samples: The number of rows.
        schema: The Arrow schema.
        batch_samples: Rows that are decoded together; None if any range costs the same.
        seams: Where a row does not continue the one before it.
        in_flight: Simultaneous reads that remote files need; None for local ones.
    """

    batch_samples: int | None = None
    seams: Sequence[int] = ()
    in_flight: int | None = None

    def __init__(self, table: Any) -> None:
        self._table = table
        self.samples: int = table.num_rows
        self.schema: Any = table.schema

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """Return an Arrow table of rows ``start:stop``, without a copy."""
        return self._table.select(columns).slice(start, stop - start)

    def stored_bytes(self) -> Iterator[bytes] | None:
        """Return stored bytes for the fingerprint, or None if it uses rows."""
        return None

    def remembered(self, column: str, build: Callable[[], Index]) -> Index:
        """Return what ``build`` returns for a column, from an earlier run if possible."""
        return build()  # the lengths of lists are stored: they need not be computed


def open_rows(table: Any) -> MemoryRows:
    """Return the rows of a table, of a Hugging Face dataset, or of files at a path."""
    if isinstance(table, StoredFile):
        return ParquetRows([table])
    if isinstance(table, str | os.PathLike):
        path = a_path("table", table, error=SourceError)
        is_parquet = path.is_dir() or path.suffix in (".parquet", ".pq")
        return ParquetRows(_parquet_files(path)) if is_parquet else MappedRows(path)
    if type(table).__module__.startswith("datasets."):
        return DatasetRows(table)
    if type(table).__module__.startswith("pyarrow."):
        return MemoryRows(table)
    raise SourceError(
        f"{type(table).__name__} is not a table: pass a pyarrow table, a Hugging Face dataset, "
        "or the path of Parquet or Arrow files"
    )


class MappedRows(MemoryRows):
    """An Arrow file (or stream in a file), mapped; opened once in each process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: tuple[Any, Any, int] | None = None  # table, mapped file, its size
        table = self._mapped()
        self.samples, self.schema = table.num_rows, table.schema

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """Return an Arrow table of rows ``start:stop``, over mapped pages."""
        return self._mapped().select(columns).slice(start, stop - start)

    def _mapped(self) -> Any:
        opened = self._opened or _map_table(self._path)
        self._opened = opened
        table, pages, size = opened
        found = os.fstat(pages.fileno()).st_size
        if found < size:  # touching pages past the end would be SIGBUS
            raise SourceError(
                f"{self._path} has shrunk to {found} bytes of {size} while it was read: "
                "restore the file"
            )
        return table


def _map_table(path: Path) -> tuple[Any, Any, int]:
    arrow = optional("pyarrow", extra="arrow")
    ipc = optional("pyarrow.ipc", extra="arrow")
    try:
        pages = arrow.memory_map(str(path))
        size = os.fstat(pages.fileno()).st_size
        try:
            return ipc.open_file(pages).read_all(), pages, size
        except arrow.ArrowInvalid:
            pages.seek(0)
            return ipc.open_stream(pages).read_all(), pages, size
    except FileNotFoundError as error:
        raise SourceError(f"there is no file {path}") from error
    except (arrow.ArrowException, OSError) as error:
        raise SourceError(f"{path} is not a readable Arrow file: {error}") from error


class DatasetRows(MemoryRows):
    """A Hugging Face dataset, with its selections and shuffles."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.with_format("arrow")
        self.samples, self.schema = len(dataset), dataset.features.arrow_schema
        selected = getattr(dataset, "_indices", None)
        if selected is not None:  # rows that were selected, shuffled or sorted
            steps = np.diff(selected.column(0).to_numpy().astype(np.int64))
            self.seams = (np.flatnonzero(steps != 1) + 1).tolist()

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """Return an Arrow table of rows ``start:stop``."""
        return self._dataset[start:stop].select(columns)


class RowGroup(NamedTuple):
    """Row group ``number`` of a Parquet file, and where its bytes are."""

    file: Path | StoredFile
    number: int
    samples: int
    offset: int
    nbytes: int


class ParquetRows(MemoryRows):
    """Parquet files with the same columns, one after the other."""

    def __init__(self, files: Sequence[Path | StoredFile]) -> None:
        remote = [file.in_flight for file in files if isinstance(file, StoredFile)]
        self.in_flight = max(remote, default=None)
        metadata = [_read_metadata(file) for file in files]
        self.schema = metadata[0].schema.to_arrow_schema()
        self._groups: list[RowGroup] = []
        for file, each in zip(files, metadata, strict=True):
            if not each.schema.to_arrow_schema().equals(self.schema):
                raise SourceError(
                    f"{_name(file)} has other columns than {_name(files[0])}: they must be equal"
                )
            self._groups += _row_groups(file, each)
        self._ends = list(accumulate(group.samples for group in self._groups))
        self.samples = self._ends[-1] if self._ends else 0
        self.batch_samples = max((group.samples for group in self._groups), default=1)
        pairs = zip(self._groups, self._groups[1:], self._ends, strict=False)
        borders = {end for group, after, end in pairs if group.file != after.file}
        self.seams = sorted(borders - {0, self.samples})  # files need not continue each other

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """Return an Arrow table of rows ``start:stop``; whole row groups are decoded."""
        first, last = bisect_right(self._ends, start), bisect_right(self._ends, stop - 1)
        parts = [_read_group(group, columns) for group in self._groups[first : last + 1]]
        begin = self._ends[first] - self._groups[first].samples
        tables = optional("pyarrow", extra="arrow").concat_tables(parts)
        return tables.slice(start - begin, stop - start)

    def remembered(self, column: str, build: Callable[[], Index]) -> Index:
        """Return what ``build`` returns for a column, from an earlier run if possible."""
        files = dict.fromkeys(group.file for group in self._groups)
        local = [file for file in files if isinstance(file, Path)]
        remote = [[file.name, file.version] for file in files if isinstance(file, StoredFile)]
        return remembered("parquet-2", local, [column, remote], build)

    def stored_bytes(self) -> Iterator[bytes]:
        """Return the first bytes of a few row groups, as they are in the file."""
        for number in sampled_blocks(len(self._groups)):
            group = self._groups[number]
            nbytes = min(group.nbytes, MOST_SAMPLED_BYTES)
            if isinstance(group.file, Path):
                raw = new_memory(nbytes)
                read_exactly(group.file, raw, group.offset)
            else:
                raw = group.file.read_at(group.offset, nbytes)
            yield raw.tobytes()


def _parquet_files(path: Path) -> list[Path]:
    """Return a file, or all ``*.parquet`` files of a directory in the order of their names."""
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise SourceError(f"there are no .parquet files in {path}")
    return files


def _name(file: Path | StoredFile) -> str:
    return str(file) if isinstance(file, Path) else file.name


def _opened(file: Path | StoredFile) -> Any:
    """Return what pyarrow opens."""
    if isinstance(file, Path):
        return file
    return optional("pyarrow", extra="arrow").PythonFile(RangeFile(file), mode="r")


def _read_metadata(file: Path | StoredFile) -> Any:
    arrow = optional("pyarrow", extra="arrow")
    try:
        return optional("pyarrow.parquet", extra="arrow").read_metadata(_opened(file))
    except FileNotFoundError as error:
        raise SourceError(f"there is no file {_name(file)}") from error
    except SourceError:
        raise
    except (arrow.ArrowException, OSError) as error:
        raise SourceError(f"{_name(file)} is not a readable Parquet file: {error}") from error


def _row_groups(file: Path | StoredFile, metadata: Any) -> Iterator[RowGroup]:
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(column) for column in range(group.num_columns)]
        nbytes = sum(column.total_compressed_size for column in columns)
        offset = min(c.dictionary_page_offset or c.data_page_offset for c in columns)
        yield RowGroup(file, number, group.num_rows, offset, nbytes)


def _read_group(group: RowGroup, columns: Sequence[str]) -> Any:
    arrow = optional("pyarrow", extra="arrow")
    parquet = optional("pyarrow.parquet", extra="arrow")
    try:
        with parquet.ParquetFile(_opened(group.file), memory_map=False) as file:
            # the caller's threads are the parallelism
            return file.read_row_group(group.number, columns=list(columns), use_threads=False)
    except SourceError:
        raise
    except (arrow.ArrowException, OSError) as error:
        raise SourceError(
            f"cannot read row group {group.number} of {_name(group.file)}: {error}; "
            "write or copy the file again"
        ) from error
