"""Where samples are read from: memory, files, Zarr, tables, object storage."""

from penstock.sources.arrow import ArrowSource
from penstock.sources.base import Arrays, ComposedSource, Field, MappedSource, Source
from penstock.sources.detection import concatenate, open_source, zip_sources
from penstock.sources.memory import MemorySource
from penstock.sources.npy import NpySource
from penstock.sources.statistics import Statistics
from penstock.sources.zarr import ZarrSource

__all__ = [
    "ArrowSource",
    "Arrays",
    "ComposedSource",
    "Field",
    "MappedSource",
    "MemorySource",
    "NpySource",
    "Source",
    "Statistics",
    "ZarrSource",
    "concatenate",
    "open_source",
    "zip_sources",
]
