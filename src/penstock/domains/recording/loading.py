"""Columns of a recording as arrays: whole slices, metadata, and a loader for chunks of time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number
from penstock.domains.recording.columns import FlyVisSim, dynamic_column
from penstock.domains.recording.layout import find_recording
from penstock.errors import PlanError
from penstock.sources.base import Field
from penstock.sources.readers import ArrayReader
from penstock.sources.requests import check_range, destinations
from penstock.sources.scratch import Bytes, Reused, borrowed

MOST_THREADS = 1024

FloatRows = npt.NDArray[np.float32]
Rows = npt.NDArray[np.generic]
Buffers = tuple[Rows, ...]


def load_column_slice(
    path: str | os.PathLike[str],
    column: FlyVisSim | int,
    start: int,
    end: int,
    neuron_limit: int | None = None,
) -> FloatRows:
    """Timesteps ``start:end`` of one column, (timesteps, neurons) of contiguous float32.

    ``neuron_limit=0`` means no neurons. A static column is an ``AssertionError``, a range past
    the end a ``ValueError``.
    """
    reader = find_recording(path).reader(dynamic_column(column), neuron_limit)
    check_range(reader.samples, start, end)
    rows = np.empty((end - start, *reader.field.shape), reader.field.dtype)
    reader.read(start, end, rows)
    return rows.astype(np.float32, copy=False)


def load_metadata(path: str | os.PathLike[str]) -> FloatRows:
    """The static columns (INDEX, XPOS, YPOS, GROUP_TYPE, TYPE), (neurons, 5) of float32."""
    return find_recording(path).metadata()


class ColumnLoader:
    """Reads timesteps ``start:end`` of two columns: ``loader(start, end) -> (data, stim)``.

    The store is opened once; calls from several threads, and after pickling, are fine. With
    ``out=(data, stim)`` the rows go into those buffers and the parts that were filled come back.
    Without, memory of arrays that are gone is used again: new memory may cost more than decoding.
    That of one chunk, and what it was decoded in, is kept as long as the loader lives.
    """

    def __init__(self, readers: tuple[ArrayReader, ...], threads: int) -> None:
        self._columns, self._threads = tuple(_Column(reader) for reader in readers), threads
        self.total_timesteps = readers[0].samples

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (tuple(column.reader for column in self._columns), self._threads)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Shape and dtype of one timestep of each array."""
        return tuple(column.reader.field for column in self._columns)

    @property
    def chunk_timesteps(self) -> int:
        """Timesteps in one chunk of the storage: ranges aligned to it decode nothing twice."""
        return max(column.reader.chunk_samples for column in self._columns)

    def __call__(self, start: int, end: int, out: Buffers | None = None) -> Buffers:
        """Rows ``start:end`` of each array, in memory of its own or in ``out``."""
        check_range(self.total_timesteps, start, end)
        rows = self._buffers(end - start, out)
        pairs = zip(self._columns, rows, strict=True)
        parts = [part for column, into in pairs for part in column.parts(start, end, into)]
        if len(parts) < 2 or self._threads < 2:
            for part in parts:
                part()
            return rows
        with ThreadPoolExecutor(self._threads, "penstock-decode") as pool:
            for done in [pool.submit(part) for part in parts]:
                done.result()
        return rows

    def _buffers(self, timesteps: int, out: Buffers | None) -> Buffers:
        if out is None:
            return tuple(column.empty(timesteps) for column in self._columns)
        if len(out) != len(self._columns):
            raise PlanError(f"out must hold {len(self._columns)} buffers, got {len(out)}")
        fields = {str(number): field for number, field in enumerate(self.fields)}
        named = {str(number): buffer for number, buffer in enumerate(out)}
        return tuple(rows for _, rows in destinations(fields, named, timesteps))


class _Column:
    """What reads a column, and the memory it was read into and decoded in before."""

    def __init__(self, reader: ArrayReader) -> None:
        self.reader = reader
        self._memory = Reused()
        self._spare: list[dict[str, Bytes]] = []  # threads come and go, their buffers stay

    def empty(self, timesteps: int) -> Rows:
        field = self.reader.field
        return self._memory.empty((timesteps, *field.shape), field.dtype)

    def parts(self, start: int, end: int, rows: Rows) -> Iterator[Callable[[], None]]:
        """A read for each chunk of storage, so that threads share the decoding."""
        first = start
        while first < end:
            size = self.reader.chunk_samples
            last = min(end, (first // size + 1) * size)
            yield partial(self._read, first, last, rows[first - start : last - start])
            first = last

    def _read(self, first: int, last: int, into: Rows) -> None:
        with borrowed(self._spare):
            self.reader.read(first, last, into)


def create_zarr_loader(
    data_path: str | os.PathLike[str],
    column_idx: FlyVisSim | int,
    stim_column_idx: FlyVisSim | int,
    num_stim_dims: int | None,
    *,
    threads: int = 2,
) -> ColumnLoader:
    """A function that reads timesteps of a column and of the stimulus of the first neurons.

    Args:
        data_path: The recording, in any of its layouts.
        column_idx: The column to model, for all neurons.
        stim_column_idx: The column of the stimulus.
        num_stim_dims: How many neurons to read the stimulus of, the first ones; all if None.
        threads: Threads that decode one range; two keep up with most training.
    """
    whole_number("threads", threads, minimum=1, maximum=MOST_THREADS)
    files = find_recording(data_path)
    data = files.reader(dynamic_column(column_idx), None)
    stimulus = files.reader(dynamic_column(stim_column_idx), num_stim_dims)
    return ColumnLoader((data, stimulus), threads)
