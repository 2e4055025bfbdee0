"""Write small recordings in the newest layout, for examples and tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import a_path, whole_number
from penstock.domains.recording.layout import DYNAMIC, STATIC, FlyVisSim
from penstock.errors import SourceError
from penstock.extras import optional

CHUNK_TIMESTEPS = 2000


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
    shape = _shape(columns)
    series = np.zeros((*shape, len(DYNAMIC)), np.float32)
    for name, values in columns.items():
        series[:, :, DYNAMIC.index(FlyVisSim[name])] = values
    static = _default_metadata(shape[1]) if metadata is None else np.asarray(metadata, np.float32)
    if static.shape != (shape[1], len(STATIC)):
        raise SourceError(f"metadata must have shape {(shape[1], len(STATIC))}, got {static.shape}")
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "timeseries.zarr", series, (chunk_timesteps, max(1, shape[1]), 1))
    _write(folder / "metadata.zarr", static, static.shape)
    return folder


def _shape(columns: dict[str, npt.ArrayLike]) -> tuple[int, int]:
    known = [column.name for column in DYNAMIC]
    if not isinstance(columns, dict) or not columns:
        raise SourceError(f"columns must be a dict of arrays by name, got {columns!r}")
    shapes = {name: np.shape(values) for name, values in columns.items()}
    unknown = sorted(set(shapes) - set(known))
    if unknown or len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 2:
        raise SourceError(
            f"columns must be some of {known}, all of one shape (timesteps, neurons), got {shapes}"
        )
    timesteps, neurons = next(iter(shapes.values()))
    return timesteps, neurons


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
