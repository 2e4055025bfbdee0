"""Reading a recording: as a source for `StreamLoader`, as whole slices, or chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import a_path, whole_number
from penstock.domains.recording import layout
from penstock.errors import PlanError, SourceError
from penstock.extras import optional
from penstock.sources.array_source import ArrayReader, ArraySource
from penstock.sources.contract import check_range, checked_buffers, checked_names
from penstock.sources.thread_buffers import Bytes, ReusedMemory, borrowed_buffers

MAX_THREADS = 1024

FloatRows = npt.NDArray[np.float32]
Rows = npt.NDArray[np.generic]
Buffers = tuple[Rows, ...]

CHUNK_TIMESTEPS = 2000


class RecordingSource(ArraySource):
    """A recording as a source: a sample is a timestep, a field is a column over all neurons.

    Args:
        path: The recording, in any layout; its ``.zarr`` or ``.npy`` suffix may be left out.
        columns: Columns that change with time, by name or number; None for all four.
        neurons: Number of neurons to read of a column, the first ones: ``{"STIMULUS": 1736}``.
    """

    @staticmethod
    def accepts(path: Path) -> bool:
        """Return whether ``path`` is a recording, in any layout."""
        return layout.recording_at(path) is not None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[layout.FlyVisSim | int | str] | None = None,
        neurons: Mapping[str, int] | None = None,
    ) -> None:
        named = checked_names("columns", columns, str | int) or layout.DYNAMIC
        files = layout.find_recording(path)
        self._path, self.layout = files.path, files.layout
        chosen = [layout.dynamic_column(column) for column in named]
        limits = {layout.dynamic_column(name): count for name, count in (neurons or {}).items()}
        readers = {column.name: files.reader(column, limits.get(column)) for column in chosen}
        super().__init__(readers, str(self._path))

    def __repr__(self) -> str:
        columns = list(self.fields)
        return f"RecordingSource({str(self._path)!r}, {len(self)} timesteps of {columns})"


def load_column_slice(
    path: str | os.PathLike[str],
    column: layout.FlyVisSim | int,
    start: int,
    end: int,
    neuron_limit: int | None = None,
) -> FloatRows:
    """Return timesteps ``start:end`` of one column, contiguous float32 (timesteps, neurons).

    Args:
        path: The recording, in any layout.
        column: A column that changes with time.
        start: The first timestep.
        end: The end of the range.
        neuron_limit: Neurons to read, the first ones; None for all, 0 for none.

    Raises:
        StaticColumnError: The column does not change with time (also an ``AssertionError``).
        PlanError: The range is not within the recording (also a ``ValueError``).
    """
    reader = layout.find_recording(path).reader(layout.dynamic_column(column), neuron_limit)
    check_range(reader.samples, start, end)
    rows = np.empty((end - start, *reader.field.shape), reader.field.dtype)
    reader.read(start, end, rows)
    return rows.astype(np.float32, copy=False)


def load_metadata(path: str | os.PathLike[str]) -> FloatRows:
    """Return the static columns (INDEX, XPOS, YPOS, GROUP_TYPE, TYPE), float32 (neurons, 5).

    Args:
        path: The recording, in any layout.
    """
    return layout.find_recording(path).metadata()


class ColumnLoader:
    """A function that reads two columns: ``loader(start, end) -> (data, stimulus)``.

    The store is opened once. The loader can be called from several threads and can be pickled.

    With ``out=(data, stimulus)`` the rows are written to these buffers, and views of the written
    parts are returned. Otherwise the memory of arrays that were deleted is reused, because new
    memory can cost more time than decoding; the memory of one chunk stays with the loader.

    Args:
        readers: One for each column.
        threads: Threads that decode one range.

    Attributes:
        fields: Shape and dtype of one timestep of each array.
        chunk_timesteps: Timesteps in a chunk of the storage.
    """

    def __init__(self, readers: tuple[ArrayReader, ...], threads: int) -> None:
        self._readers, self._threads = readers, threads
        self._memory = [ReusedMemory() for _ in readers]
        self._spare: list[dict[str, Bytes]] = []  # threads end with each call, their buffers do not
        self.total_timesteps = readers[0].samples
        # ranges aligned to it decode no chunk of the storage twice
        self.chunk_timesteps = max(reader.chunk_samples for reader in readers)
        self.fields = tuple(reader.field for reader in readers)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._readers, self._threads)

    def __call__(self, start: int, end: int, out: Buffers | None = None) -> Buffers:
        """Return rows ``start:end`` of each column, in new memory or in ``out``."""
        check_range(self.total_timesteps, start, end)
        if out is None:
            rows: Buffers = tuple(
                memory.empty((end - start, *field.shape), field.dtype)
                for memory, field in zip(self._memory, self.fields, strict=True)
            )
        elif len(out) != len(self.fields):
            raise PlanError(f"out must hold {len(self.fields)} buffers, got {len(out)}")
        else:
            named = {str(n): each for n, each in enumerate(out)}
            fields = dict(zip(named, self.fields, strict=True))
            rows = tuple(checked_buffers(fields, named, end - start).values())
        parts = []  # one read for each chunk of the storage, so that threads share the decoding
        for reader, into in zip(self._readers, rows, strict=True):
            size = reader.chunk_samples
            edges = [start, *range(start - start % size + size, end, size), end]
            for first, last in pairwise(edges if start < end else ()):
                parts.append(partial(self._read, reader, first, last, into[first - start :]))
        if len(parts) < 2 or self._threads < 2:
            for part in parts:
                part()
            return rows
        with ThreadPoolExecutor(self._threads, "penstock-decode") as pool:
            for done in [pool.submit(part) for part in parts]:
                done.result()
        return rows

    def _read(self, reader: ArrayReader, first: int, last: int, into: Rows) -> None:
        with borrowed_buffers(self._spare):
            reader.read(first, last, into[: last - first])


def create_zarr_loader(
    data_path: str | os.PathLike[str],
    column_idx: layout.FlyVisSim | int,
    stim_column_idx: layout.FlyVisSim | int,
    num_stim_dims: int | None,
    *,
    threads: int = 2,
) -> ColumnLoader:
    """Return a function that reads timesteps of a column and of the stimulus.

    Args:
        data_path: The recording, in any layout.
        column_idx: The column to model, read for all neurons.
        stim_column_idx: The column of the stimulus.
        num_stim_dims: Neurons to read the stimulus of, the first ones; None for all.
        threads: Threads that decode one range; two are fast enough for most training.
    """
    whole_number("threads", threads, minimum=1, maximum=MAX_THREADS)
    files = layout.find_recording(data_path)
    data = files.reader(layout.dynamic_column(column_idx), None)
    stimulus = files.reader(layout.dynamic_column(stim_column_idx), num_stim_dims)
    return ColumnLoader((data, stimulus), threads)


def write_recording(
    path: str | os.PathLike[str],
    columns: dict[str, npt.ArrayLike],
    *,
    metadata: npt.ArrayLike | None = None,
    chunk_timesteps: int = CHUNK_TIMESTEPS,
) -> Path:
    """Write ``timeseries.zarr`` and ``metadata.zarr`` into ``path``, and return it.

    Args:
        path: A directory; created if necessary.
        columns: Arrays (timesteps, neurons) by the name of a column that changes with time. Other
            columns are zero.
        metadata: INDEX, XPOS, YPOS, GROUP_TYPE and TYPE, (neurons, 5); None for a default grid.
        chunk_timesteps: Timesteps in a chunk of the storage.
    """
    folder = a_path("path", path, error=SourceError)
    whole_number("chunk_timesteps", chunk_timesteps, minimum=1, maximum=2**31)
    known = [column.name for column in layout.DYNAMIC]
    if not isinstance(columns, dict) or not columns:
        raise SourceError(f"columns must be a dict of arrays by name, got {columns!r}")
    shapes = {name: np.shape(values) for name, values in columns.items()}
    shape, *others = set(shapes.values())
    if not shapes.keys() <= {*known} or others or len(shape) != 2:
        raise SourceError(
            f"columns must be some of {known}, all of one shape (timesteps, neurons), got {shapes}"
        )
    series = np.zeros((*shape, len(layout.DYNAMIC)), np.float32)
    for name, values in columns.items():
        series[:, :, known.index(name)] = values
    static = _default_metadata(shape[1]) if metadata is None else np.asarray(metadata, np.float32)
    if static.shape != (wanted := (shape[1], len(layout.STATIC))):
        raise SourceError(f"metadata must have shape {wanted}, got {static.shape}")
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "timeseries.zarr", series, (chunk_timesteps, max(1, shape[1]), 1))
    _write(folder / "metadata.zarr", static, static.shape)
    return folder


def _default_metadata(neurons: int) -> npt.NDArray[np.float32]:
    number = np.arange(neurons)
    side = max(1, int(np.ceil(np.sqrt(neurons))))
    return np.stack(
        [number, number % side, number // side, number * 0, number % min(65, max(1, neurons))], 1
    ).astype(np.float32)


def _write(path: Path, data: npt.NDArray[np.float32], chunks: tuple[int, ...]) -> None:
    zarr: Any = optional("zarr", extra="zarr")
    numcodecs: Any = optional("numcodecs", extra="zarr")
    array = zarr.create_array(
        path,
        shape=data.shape,
        dtype="<f4",
        chunks=chunks,
        compressors=numcodecs.Blosc(cname="zstd", clevel=3, shuffle=2, blocksize=0),
        fill_value=None,
        filters=None,
        order="C",
        chunk_key_encoding={"name": "v2", "separator": "."},
        zarr_format=2,
        overwrite=True,
    )
    array[...] = data
