"""Where samples live: memory, files, Zarr, tables, recordings, object storage."""

from penstock.sources.arrow import ArrowSource
from penstock.sources.base import Arrays, Field, MappedSource, Source
from penstock.sources.combine import ConcatenatedSource, RangeSource, ZippedSource
from penstock.sources.memory import MemorySource
from penstock.sources.npy import NpySource
from penstock.sources.opening import open_source
from penstock.sources.recording import (
    DataSplit,
    FlyVisSim,
    NeuronData,
    RecordingSource,
    create_zarr_loader,
    load_column_slice,
    load_metadata,
    write_recording,
)
from penstock.sources.zarr import ZarrSource

__all__ = [
    "ArrowSource",
    "Arrays",
    "ConcatenatedSource",
    "DataSplit",
    "Field",
    "FlyVisSim",
    "MappedSource",
    "MemorySource",
    "NeuronData",
    "NpySource",
    "RangeSource",
    "RecordingSource",
    "Source",
    "ZarrSource",
    "ZippedSource",
    "create_zarr_loader",
    "load_column_slice",
    "load_metadata",
    "open_source",
    "write_recording",
]
