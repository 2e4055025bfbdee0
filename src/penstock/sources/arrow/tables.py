"""Where rows of a table come from: memory, mapped Arrow files, Hugging Face datasets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from penstock.errors import SourceError
from penstock.extras import optional


class TableRows(Protocol):
    """Rows by ranges. Picklable; all methods may be called from any thread."""

    @property
    def samples(self) -> int:
        """Number of rows."""
        ...

    @property
    def schema(self) -> Any:
        """The Arrow schema."""
        ...

    @property
    def batch_samples(self) -> int | None:
        """Rows that are decoded together; None where any range costs the same."""
        ...

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """An Arrow table of rows ``start:stop``."""
        ...

    def stored_bytes(self) -> Iterator[bytes] | None:
        """A few blocks' bytes as stored; None where rows stand for them."""
        ...


class MemoryRows:
    """A table in memory."""

    batch_samples = None

    def __init__(self, table: Any) -> None:
        self._table = table
        self.samples, self.schema = table.num_rows, table.schema

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """An Arrow table of rows ``start:stop``, without a copy."""
        return self._table.select(columns).slice(start, stop - start)

    def stored_bytes(self) -> Iterator[bytes] | None:
        """None: rows stand for them."""
        return None


class MappedRows:
    """An Arrow file (or stream in a file), mapped; opened once in each process."""

    batch_samples = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._opened: tuple[Any, Any, int] | None = None  # table, mapped file, its size
        table = self._table()
        self.samples, self.schema = table.num_rows, table.schema

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """An Arrow table of rows ``start:stop``, over mapped pages."""
        return self._table().select(columns).slice(start, stop - start)

    def stored_bytes(self) -> Iterator[bytes] | None:
        """None: rows stand for them."""
        return None

    def _table(self) -> Any:
        opened = self._opened or _mapped_table(self._path)
        self._opened = opened
        table, pages, size = opened
        found = os.fstat(pages.fileno()).st_size
        if found < size:  # touching pages past the end would be SIGBUS
            raise SourceError(
                f"{self._path} has shrunk to {found} bytes of {size} while it was read: "
                "restore the file"
            )
        return table


def _mapped_table(path: Path) -> tuple[Any, Any, int]:
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
        raise SourceError(f"{path} is no readable Arrow file: {error}") from error


class DatasetRows:
    """A Hugging Face dataset; its selections and shuffles hold."""

    batch_samples = None

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.with_format("arrow")
        self.samples = len(dataset)
        self.schema = dataset.features.arrow_schema
        self.seams = _gaps(getattr(dataset, "_indices", None))

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """An Arrow table of rows ``start:stop``."""
        return self._dataset[start:stop].select(columns)

    def stored_bytes(self) -> Iterator[bytes] | None:
        """None: rows stand for them."""
        return None


def _gaps(indices: Any) -> list[int]:
    """Where rows that were selected, shuffled or sorted do not follow each other."""
    if indices is None:
        return []
    places = np.flatnonzero(np.diff(indices.column(0).to_numpy().astype(np.int64)) != 1) + 1
    return [int(place) for place in places]
