"""Where samples are read from: memory, files, Zarr, tables, object storage."""

from penstock.sources.arrow import ArrowSource
from penstock.sources.base import Arrays, Field, MappedSource, Source
from penstock.sources.combine import ConcatenatedSource, RangeSource, ZippedSource
from penstock.sources.detection import open_source
from penstock.sources.memory import MemorySource
from penstock.sources.npy import NpySource
from penstock.sources.zarr import ZarrSource

__all__ = [
    "ArrowSource",
    "Arrays",
    "ConcatenatedSource",
    "Field",
    "MappedSource",
    "MemorySource",
    "NpySource",
    "RangeSource",
    "Source",
    "ZarrSource",
    "ZippedSource",
    "open_source",
]
