"""One column of a recording kept as a Zarr array, without its last axis."""

from __future__ import annotations

from pathlib import Path

from penstock.sources.base import Field
from penstock.sources.readers import Rows
from penstock.sources.zarr.grid import Crop
from penstock.sources.zarr.opening import open_cropped
from penstock.sources.zarr.stored import Directory


class ZarrColumn:
    """The part ``crop`` of an array (timesteps, neurons, columns), one column wide."""

    def __init__(self, folder: Path, crop: Crop) -> None:
        self._array = open_cropped(Directory(folder), axis=0, crop=crop)
        self.samples = self._array.samples
        self.field = Field(self._array.field.shape[:1], self._array.field.dtype)
        self.chunk_samples = self._array.chunk_samples

    def read(self, start: int, stop: int, out: Rows) -> None:
        """Fill ``out`` with timesteps ``start:stop``."""
        self._array.read(start, stop, out[..., None])

    def view(self, start: int, stop: int) -> Rows | None:
        """Timesteps ``start:stop`` over mapped pages, where the chunks are raw."""
        rows = self._array.view(start, stop)
        return None if rows is None else rows[..., 0]

    def fingerprint(self) -> str:
        """Identity of the data."""
        return self._array.fingerprint()
