"""The rows of a table by ranges: in memory, mapped Arrow files, Hugging Face datasets, Parquet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from penstock.arguments import a_path
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.fingerprints import sampled_blocks
from penstock.sources.cache import Index, cached_index
from penstock.sources.storage import LocalFile, RangeFile, StoredFile, package_of, reading

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
        self._opened: Any = table
        self.samples: int = table.num_rows
        self.schema: Any = table.schema

    def table(self) -> Any:
        """Return the table."""
        return self._opened

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """Return an Arrow table of rows ``start:stop``."""
        return self.table().select(columns).slice(start, stop - start)

    def verify(self) -> None:
        """Raise ``SourceError`` if the rows were written since they were opened."""
        return

    def stored_bytes(self) -> Iterator[bytes] | None:
        """Return stored bytes for the fingerprint, or None if it uses rows."""
        return None

    def cached_index(self, column: str, build: Callable[[], Index]) -> Index:
        """Return what ``build`` returns for a column, from an earlier run if possible."""
        return build()  # the lengths of lists are stored: they need not be computed


def open_rows(table: Any) -> MemoryRows:
    """Return the rows of a table, of a Hugging Face dataset, or of files at a path."""
    package = package_of(table)
    if isinstance(table, StoredFile):
        return ParquetRows([table])
    if package in ("datasets", "pyarrow"):
        return DatasetRows(table) if package == "datasets" else MemoryRows(table)
    path = a_path("table", table, error=SourceError)
    if path.is_dir():
        files = sorted(path.rglob("*.parquet"))
        if not files:
            raise SourceError(f"there are no .parquet files in {path}")
        return ParquetRows([LocalFile(file) for file in files])
    is_parquet = path.suffix in (".parquet", ".pq")
    return ParquetRows([LocalFile(path)]) if is_parquet else MappedRows(LocalFile(path))


class MappedRows(MemoryRows):
    """An Arrow file (or stream in a file), mapped; opened once in each process."""

    def __init__(self, file: LocalFile) -> None:
        self._file, self._opened = file, None
        super().__init__(self.table())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def table(self) -> Any:
        """Return the table over mapped pages."""
        pages = self._file.mapped()  # verifies the file: pyarrow trusts what it has mapped
        if self._opened is None:
            arrow, ipc = optional("pyarrow", "arrow"), optional("pyarrow.ipc", "arrow")
            with reading(self._file.name, "pyarrow"):
                try:
                    self._opened = ipc.open_file(arrow.py_buffer(pages)).read_all()
                except arrow.ArrowInvalid:
                    self._opened = ipc.open_stream(arrow.py_buffer(pages)).read_all()
                self._opened.validate()  # reading does not check the file's metadata
        return self._opened

    def verify(self) -> None:
        """Raise ``SourceError`` if the file was written since it was opened."""
        self._file.verify()


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

    file: StoredFile
    number: int
    samples: int
    offset: int
    nbytes: int


class ParquetRows(MemoryRows):
    """Parquet files with the same columns, one after the other."""

    def __init__(self, files: Sequence[StoredFile]) -> None:
        self.in_flight = files[0].in_flight
        self._groups: list[RowGroup] = []
        borders, self.samples = set(), 0
        for file in files:
            with reading(file.name, "pyarrow"), _opened(file) as opened:
                schema, metadata = opened.schema_arrow, opened.metadata
            if file is files[0]:
                self.schema = schema
            if not schema.equals(self.schema):
                raise SourceError(
                    f"{file.name} and {files[0].name} have different columns: they must be equal"
                )
            self._groups += _row_groups(file, metadata)
            borders.add(self.samples)
            self.samples += metadata.num_rows
        self._ends = list(accumulate(group.samples for group in self._groups))
        self.batch_samples = max((group.samples for group in self._groups), default=1)
        self.seams = sorted(borders - {0, self.samples})  # files need not continue each other

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """Return an Arrow table of rows ``start:stop``; whole row groups are decoded."""
        first, last = bisect_right(self._ends, start), bisect_right(self._ends, stop - 1)
        parts = []
        for group in self._groups[first : last + 1]:
            group.file.verify()
            name = f"row group {group.number} of {group.file.name}"
            with reading(name, "pyarrow"), _opened(group.file) as file:
                # the caller's threads are the parallelism
                part = file.read_row_group(group.number, columns=list(columns), use_threads=False)
            group.file.verify()  # also afterwards: the file must be the one that was opened
            parts.append(part)
        begin = self._ends[first] - self._groups[first].samples
        tables = optional("pyarrow", extra="arrow").concat_tables(parts)
        return tables.slice(start - begin, stop - start)

    def cached_index(self, column: str, build: Callable[[], Index]) -> Index:
        """Return what ``build`` returns for a column, from an earlier run if possible."""
        files = list({group.file.name: group.file for group in self._groups}.values())
        local = [file.path for file in files if file.path is not None]
        remote = [[file.name, file.version] for file in files if file.path is None]
        return cached_index("parquet-2", local, [column, remote], build)

    def stored_bytes(self) -> Iterator[bytes]:
        """Return the first bytes of a few row groups, as they are in the file."""
        for number in sampled_blocks(len(self._groups)):
            group = self._groups[number]
            nbytes = min(group.nbytes, MOST_SAMPLED_BYTES)
            yield group.file.read_at(group.offset, nbytes).tobytes()


def _opened(file: StoredFile) -> Any:
    arrow, parquet = optional("pyarrow", "arrow"), optional("pyarrow.parquet", "arrow")
    where = file.path or arrow.PythonFile(RangeFile(file), mode="r")
    return parquet.ParquetFile(where, memory_map=False)


def _row_groups(file: StoredFile, metadata: Any) -> Iterator[RowGroup]:
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(column) for column in range(group.num_columns)]
        nbytes = sum(column.total_compressed_size for column in columns)
        offset = min(c.dictionary_page_offset or c.data_page_offset for c in columns)
        yield RowGroup(file, number, group.num_rows, offset, nbytes)
