"""The three ways a recording is stored, and which of them is at a path."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number
from penstock.domains.recording.columns import DYNAMIC, STATIC, FlyVisSim
from penstock.domains.recording.npy_column import NpyColumn
from penstock.domains.recording.zarr_column import ZarrColumn
from penstock.errors import PlanError, SourceError
from penstock.sources.base import Source
from penstock.sources.npy import NpySource
from penstock.sources.readers import ArrayReader
from penstock.sources.requests import checked_path
from penstock.sources.zarr.source import ZarrSource

LayoutName = Literal["zarr_v2", "zarr_v1", "npy"]


@dataclass(frozen=True, slots=True)
class RecordingFiles:
    """A recording on disk: ``zarr_v2`` keeps the columns that change apart from those that do not.

    The older layouts hold one array of shape (timesteps, neurons, 9).
    """

    layout: LayoutName
    path: Path

    def array(self) -> ZarrSource | NpySource:
        """The array over time, whole."""
        if self.layout == "npy":
            return NpySource(self.path)
        return ZarrSource(self.path / "timeseries.zarr" if self.layout == "zarr_v2" else self.path)

    def position(self, column: FlyVisSim) -> int:
        """Where the array over time keeps that column on its last axis."""
        return DYNAMIC.index(column) if self.layout == "zarr_v2" else int(column)

    def reader(self, column: FlyVisSim, neurons: int | None) -> ArrayReader:
        """One column over time, of the first ``neurons`` neurons (all of them if None)."""
        shape = self.shape()
        limit = checked_neurons(shape[1], neurons)
        crop = (0, shape[0]), (0, limit), (self.position(column), self.position(column) + 1)
        if self.layout == "npy":
            return NpyColumn(NpySource(self.path), limit, int(column))
        folder = self.path / "timeseries.zarr" if self.layout == "zarr_v2" else self.path
        return ZarrColumn(folder, crop)

    def shape(self) -> tuple[int, int]:
        """Timesteps and neurons, once the array is known to be a recording's."""
        array = self.array()
        field = array.fields.get("")
        columns = len(DYNAMIC) if self.layout == "zarr_v2" else len(FlyVisSim)
        if field is None or len(field.shape) != 2 or field.shape[1] != columns:
            found = None if field is None else (len(array), *field.shape)
            raise SourceError(
                f"{self.path} is no recording: its array must have shape (timesteps, neurons, "
                f"{columns}), found {found}"
            )
        return len(array), field.shape[0]

    def metadata(self) -> npt.NDArray[np.float32]:
        """The static columns, (neurons, 5) of float32."""
        if self.layout == "zarr_v2":
            static = ZarrSource(self.path / "metadata.zarr")
            return np.ascontiguousarray(_first_rows(static, len(static)), np.float32)
        first = _first_rows(self.array(), 1)[0]
        return np.ascontiguousarray(first[:, [int(column) for column in STATIC]], np.float32)


def _first_rows(source: Source, count: int) -> npt.NDArray[np.generic]:
    field = source.fields[""]
    rows = np.empty((count, *field.shape), field.dtype)
    source.read(0, count, {"": rows})
    return rows


def checked_neurons(available: int, wanted: int | None) -> int:
    """How many neurons to read: all of them if None, none of them if 0.

    >>> checked_neurons(100, None), checked_neurons(100, 0)
    (100, 0)
    """
    if wanted is None:
        return available
    if not 0 <= (count := whole_number("neuron_limit", wanted)) <= available:
        raise PlanError(f"neuron_limit must be from 0 to {available} neurons, got {wanted}")
    return count


def find_recording(path: str | os.PathLike[str]) -> RecordingFiles:
    """The recording at ``path``, whose ``.zarr`` or ``.npy`` suffix may be left out."""
    found = recording_at(checked_path(path))
    if found is None:
        base = _without_suffix(Path(path))
        raise SourceError(
            f"there is no recording at {base}: looked for a directory with timeseries.zarr and "
            f"metadata.zarr, for {base.name}.zarr/.zarray and for {base.name}.npy"
        )
    return found


def recording_at(path: str | os.PathLike[str]) -> RecordingFiles | None:
    """The recording at ``path`` if there is one, in the order newest layout first."""
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
