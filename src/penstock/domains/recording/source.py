"""A fly-visual-system recording as a source: a sample is a timestep, a field is a column."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.domains.recording.columns import DYNAMIC, FlyVisSim, dynamic_column
from penstock.domains.recording.layout import find_recording, recording_at
from penstock.sources.readers import ReaderSource
from penstock.sources.requests import checked_names


class RecordingSource(ReaderSource):
    """Columns of a recording over time, by name; each sample holds one value for each neuron.

    Args:
        path: The recording, in any of its layouts; a ``.zarr`` or ``.npy`` suffix may be left out.
        columns: Columns that change with time, by name or number; all four of them if None.
        neurons: How many neurons to read of a column, the first ones: ``{"STIMULUS": 1736}``.
    """

    @staticmethod
    def accepts(path: Path) -> bool:
        """Tell whether ``path`` is a recording, in any of its layouts."""
        return recording_at(path) is not None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[FlyVisSim | int | str] | None = None,
        neurons: Mapping[str, int] | None = None,
    ) -> None:
        named = checked_names("columns", columns, str | int) or DYNAMIC
        files = find_recording(path)
        self._path, self.layout = files.path, files.layout
        chosen = [dynamic_column(column) for column in named]
        limits = {dynamic_column(name): count for name, count in (neurons or {}).items()}
        readers = {column.name: files.reader(column, limits.get(column)) for column in chosen}
        super().__init__(readers, str(self._path))

    def __repr__(self) -> str:
        columns = list(self.fields)
        return f"RecordingSource({str(self._path)!r}, {len(self)} timesteps of {columns})"
