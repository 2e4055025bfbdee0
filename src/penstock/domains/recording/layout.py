"""Recordings on disk: their columns, the three layouts they are stored in, and one column's rows.

The newest layout, ``zarr_v2``, stores columns that change with time apart from those that do not.
The older ones, ``zarr_v1`` and ``npy``, store one array of shape (timesteps, neurons, 9).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.arguments import a_path, whole_number
from penstock.errors import PlanError, SourceError
from penstock.fingerprints import digest
from penstock.registry import did_you_mean
from penstock.sources.array_source import ArrayReader, Box
from penstock.sources.contract import Field, Rows, Source
from penstock.sources.npy import NpySource
from penstock.sources.storage import DirectoryStore
from penstock.sources.zarr.source import ZarrSource, stored_arrays

LayoutName = Literal["zarr_v2", "zarr_v1", "npy"]

Whole = TypeVar("Whole", bound=np.integer[Any])
_NAMES = """
    Am C2 C3 CT1(Lo1) CT1(M10) L1 L2 L3 L4 L5 Lawf1 Lawf2
    Mi1 Mi10 Mi11 Mi12 Mi13 Mi14 Mi15 Mi2 Mi3 Mi4 Mi9 R1 R2 R3 R4 R5 R6 R7 R8
    T1 T2 T2a T3 T4a T4b T4c T4d T5a T5b T5c T5d
    Tm1 Tm16 Tm2 Tm20 Tm28 Tm3 Tm30 Tm4 Tm5Y Tm5a Tm5b Tm5c Tm9
    TmY10 TmY13 TmY14 TmY15 TmY18 TmY3 TmY4 TmY5a TmY9
"""
TYPE_NAMES = tuple(_NAMES.split())


class FlyVisSim(IntEnum):
    """Columns of a recording; dynamic ones change with time, static ones describe a neuron.

    >>> FlyVisSim["VOLTAGE"].value, FlyVisSim.TYPE.is_static
    (3, True)
    """

    INDEX = 0
    XPOS = 1
    YPOS = 2
    VOLTAGE = 3
    STIMULUS = 4
    GROUP_TYPE = 5
    TYPE = 6
    CALCIUM = 7
    FLUORESCENCE = 8

    @property
    def is_static(self) -> bool:
        """Whether the column is the same at all timesteps."""
        return self in STATIC


STATIC = tuple(FlyVisSim(number) for number in (0, 1, 2, 5, 6))
DYNAMIC = (FlyVisSim.VOLTAGE, FlyVisSim.STIMULUS, FlyVisSim.CALCIUM, FlyVisSim.FLUORESCENCE)


class StaticColumnError(PlanError, AssertionError):
    """Timesteps were requested of a column that does not change with time."""


def dynamic_column(column: FlyVisSim | int | str) -> FlyVisSim:
    """Return the column of a number or name, if it changes with time.

    >>> dynamic_column("VOLTAGE"), dynamic_column(4)
    (<FlyVisSim.VOLTAGE: 3>, <FlyVisSim.STIMULUS: 4>)
    """
    if isinstance(column, str):
        if column not in FlyVisSim.__members__:
            meant = did_you_mean(column, list(FlyVisSim.__members__))
            raise PlanError(f"a recording has no column {column!r}{meant}")
        chosen = FlyVisSim[column]
    else:
        if not 0 <= (number := whole_number("column", column)) < len(FlyVisSim):
            raise PlanError(f"a recording has columns 0 to 8, got {column!r}")
        chosen = FlyVisSim(number)
    if chosen.is_static:
        raise StaticColumnError(f"column {chosen.name} is static: read it with load_metadata(path)")
    return chosen


@dataclass(frozen=True, slots=True)
class RecordingFiles:
    """A recording on disk.

    Args:
        layout: How it is stored.
        path: The directory or file.
    """

    layout: LayoutName
    path: Path

    @property
    def series_path(self) -> Path:
        """The array over time."""
        return self.path / "timeseries.zarr" if self.layout == "zarr_v2" else self.path

    def series(self) -> ZarrSource | NpySource:
        """Return the whole array over time."""
        return (NpySource if self.layout == "npy" else ZarrSource)(self.series_path)

    def reader(self, column: FlyVisSim, neurons: int | None) -> ArrayReader:
        """Return a reader of one column, for the first ``neurons`` neurons (None for all)."""
        _, available = self.shape()
        limit = available if neurons is None else whole_number("neuron_limit", neurons)
        if not 0 <= limit <= available:
            raise PlanError(f"neuron_limit must be from 0 to {available} neurons, got {neurons}")
        if self.layout == "npy":
            return NpyColumn(NpySource(self.path), limit, int(column))
        # the newest layout stores only the columns that change, in this order
        index = DYNAMIC.index(column) if self.layout == "zarr_v2" else int(column)
        return ZarrColumn(self.series_path, limit, index)

    def shape(self) -> tuple[int, int]:
        """Return the number of timesteps and neurons.

        Raises:
            SourceError: The array does not have the shape of a recording.
        """
        array = self.series()
        field = array.fields.get("")
        columns = len(DYNAMIC) if self.layout == "zarr_v2" else len(FlyVisSim)
        if field is None or len(field.shape) != 2 or field.shape[1] != columns:
            found = None if field is None else (len(array), *field.shape)
            wanted = f"(timesteps, neurons, {columns})"
            raise SourceError(f"{self.path} is not a recording: its shape is {found}, not {wanted}")
        return len(array), field.shape[0]

    def metadata(self) -> npt.NDArray[np.float32]:
        """Return the static columns as float32 of shape (neurons, 5)."""
        if self.layout == "zarr_v2":
            static = ZarrSource(self.path / "metadata.zarr")
            return np.ascontiguousarray(_first_rows(static, len(static)), np.float32)
        first = _first_rows(self.series(), 1)[0]
        return np.ascontiguousarray(first[:, [int(column) for column in STATIC]], np.float32)


def _first_rows(source: Source, count: int) -> npt.NDArray[np.generic]:
    field = source.fields[""]
    rows = np.empty((count, *field.shape), field.dtype)
    source.read(0, count, {"": rows})
    return rows


def find_recording(path: str | os.PathLike[str]) -> RecordingFiles:
    """Return the recording at ``path``; its ``.zarr`` or ``.npy`` suffix may be left out.

    Args:
        path: The directory or file.

    Raises:
        SourceError: There is no recording.
    """
    found = recording_at(a_path("path", path, error=SourceError))
    if found is None:
        base = _without_suffix(Path(path))
        raise SourceError(
            f"no recording at {base}: looked for a directory with timeseries.zarr and "
            f"metadata.zarr, for {base.name}.zarr/.zarray and for {base.name}.npy"
        )
    return found


def recording_at(path: str | os.PathLike[str]) -> RecordingFiles | None:
    """Return the recording at ``path``, newest layout first; None if there is none.

    Args:
        path: The directory or file.
    """
    base = _without_suffix(Path(path))
    if (base / "metadata.zarr").exists() and (base / "timeseries.zarr").exists():
        return RecordingFiles("zarr_v2", base)
    if not base.name:
        return None
    older = base.with_name(base.name + ".zarr")
    if (older / ".zarray").exists():
        return RecordingFiles("zarr_v1", older)
    oldest = base.with_name(base.name + ".npy")
    return RecordingFiles("npy", oldest) if oldest.exists() else None


def _without_suffix(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in (".npy", ".zarr") else path


class ZarrColumn(ArrayReader):
    """One column of a Zarr array of shape (timesteps, neurons, columns).

    Args:
        folder: The array.
        neurons: Neurons to read, the first ones.
        column: Index on the last axis.
    """

    def __init__(self, folder: Path, neurons: int, column: int) -> None:
        self._array = stored_arrays(DirectoryStore(folder))[""].open(0)
        self._neurons, self._column = (0, neurons), (column, column + 1)
        self.samples = self._array.samples
        self.field = Field((neurons,), self._array.field.dtype)
        self.chunks, self.how = self._array.chunks[:2], self._array.how

    def read(self, start: int, stop: int, out: Rows, box: Box | None = None) -> None:
        """Fill ``out`` with timesteps ``start:stop``, of each only the part ``box``."""
        part = (box[0] if box else self._neurons, self._column)
        self._array.read(start, stop, out[..., None], part)

    def view(self, start: int, stop: int, box: Box | None = None) -> Rows | None:
        """Return timesteps ``start:stop`` without a copy, if the chunks are not compressed."""
        rows = self._array.view(start, stop, (box[0] if box else self._neurons, self._column))
        return None if rows is None else rows[..., 0]

    def fingerprint(self, box: Box | None = None) -> str:
        """Return the identity of the data: the array and the part of it."""
        return self._array.fingerprint((box[0] if box else self._neurons, self._column))


class NpyColumn(ArrayReader):
    """One column of an ``.npy`` array of shape (timesteps, neurons, 9).

    Args:
        source: The array.
        neurons: Neurons to read, the first ones.
        column: Index on the last axis.
    """

    def __init__(self, source: NpySource, neurons: int, column: int) -> None:
        self._source, self._neurons, self._column = source, neurons, column
        self.samples = len(source)
        self.field = Field((neurons,), source.fields[""].dtype)
        self.chunks, self.how = (source.block_samples, neurons), "direct"

    def read(self, start: int, stop: int, out: Rows, box: Box | None = None) -> None:
        """Fill ``out`` with timesteps ``start:stop``, of each only the part ``box``."""
        rows = self.view(start, stop)
        if rows is None:  # another byte order
            whole = np.empty((stop - start, *self._source.fields[""].shape), self.field.dtype)
            self._source.read(start, stop, {"": whole})
            rows = whole[:, : self._neurons, self._column]
        np.copyto(out, rows if box is None else rows[:, slice(*box[0])])

    def view(self, start: int, stop: int, box: Box | None = None) -> Rows | None:
        """Return timesteps ``start:stop`` as a strided view of mapped pages."""
        whole, part = self._source.view(start, stop), box[0] if box else (0, self._neurons)
        return None if whole is None else whole[""][:, slice(*part), self._column]

    def fingerprint(self, box: Box | None = None) -> str:
        """Return the identity of the data: the file and the part of it."""
        part = [self._neurons, self._column, *(box or ())]
        return digest([self._source.fingerprint(), *part], [])


@dataclass(frozen=True, slots=True, eq=False)
class NeuronData:
    """The neurons of a recording, one row each, and the indices of each type's neurons.

    Args:
        ix: Index of each neuron.
        pos: Position of each neuron, (neurons, 2).
        group_type: Number of each neuron's group of types.
        type: Number of each neuron's type; see ``TYPE_NAMES``.
        indices_per_type: For each type, the rows of its neurons.

    >>> metadata = np.array([[0, 0.5, 1.5, 2, 1], [1, 0.25, 0, 2, 0]], np.float32)
    >>> neurons = NeuronData.from_metadata(metadata)
    >>> neurons.type.tolist(), [i.tolist() for i in neurons.indices_per_type]
    ([1, 0], [[1], [0]])
    """

    ix: npt.NDArray[np.int32]
    pos: npt.NDArray[np.float32]
    group_type: npt.NDArray[np.uint8]
    type: npt.NDArray[np.uint8]
    indices_per_type: tuple[npt.NDArray[np.int64], ...]

    @classmethod
    def from_metadata(cls, metadata: npt.NDArray[np.float32]) -> NeuronData:
        """Return the neurons described by an array of `load_metadata`.

        Args:
            metadata: Static columns, (neurons, 5).

        Raises:
            SourceError: The shape is wrong, or types are not exactly 0 to K-1.
        """
        if not isinstance(metadata, np.ndarray) or metadata.dtype.kind not in "fiu":
            raise SourceError(f"metadata must be numbers, got {type(metadata).__name__}")
        if metadata.ndim != 2 or metadata.shape[1] != len(STATIC):
            raise SourceError(f"metadata must be (neurons, {len(STATIC)}), got {metadata.shape}")
        kind = _whole(metadata, FlyVisSim.TYPE, np.uint8)
        present = np.unique(kind)
        if not np.array_equal(present, np.arange(len(present))):
            last, found = len(present) - 1, present.tolist()
            raise SourceError(f"neuron types must be exactly 0 to {last}, found {found}")
        return cls(
            ix=_whole(metadata, FlyVisSim.INDEX, np.int32),
            pos=np.ascontiguousarray(metadata[:, [1, 2]], np.float32),
            group_type=_whole(metadata, FlyVisSim.GROUP_TYPE, np.uint8),
            type=kind,
            indices_per_type=tuple(np.flatnonzero(kind == each) for each in present),
        )


def _whole(
    metadata: npt.NDArray[np.float32], column: FlyVisSim, dtype: type[Whole]
) -> npt.NDArray[Whole]:
    """Return a column as integers; raise an error if that would change a value."""
    values = metadata[:, STATIC.index(column)]
    limits = np.iinfo(dtype)
    fits = (values == np.floor(values)) & (values >= limits.min) & (values <= limits.max)
    if not fits.all():
        row = int(np.flatnonzero(~fits)[0])
        wanted = f"a whole number from {limits.min} to {limits.max}"
        raise SourceError(f"column {column.name} of neuron {row} is {values[row]!r}, not {wanted}")
    return values.astype(dtype)
