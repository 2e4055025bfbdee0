"""Where samples are read from: memory, files, Zarr, tables, object storage."""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.sources.arrow import ArrowSource as ArrowSource
    from penstock.sources.base import Arrays as Arrays
    from penstock.sources.base import ComposedSource as ComposedSource
    from penstock.sources.base import Field as Field
    from penstock.sources.base import MappedSource as MappedSource
    from penstock.sources.base import Source as Source
    from penstock.sources.contract import DatasetLike as DatasetLike
    from penstock.sources.contract import SourceLike as SourceLike
    from penstock.sources.detection import concatenate as concatenate
    from penstock.sources.detection import open_source as open_source
    from penstock.sources.detection import zip_sources as zip_sources
    from penstock.sources.memory import MemorySource as MemorySource
    from penstock.sources.npy import NpySource as NpySource
    from penstock.sources.statistics import Statistics as Statistics
    from penstock.sources.zarr import ZarrSource as ZarrSource

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "arrow": "ArrowSource",
        "base": "Arrays ComposedSource Field MappedSource Source",
        "contract": "DatasetLike SourceLike",
        "detection": "concatenate open_source zip_sources",
        "memory": "MemorySource",
        "npy": "NpySource",
        "statistics": "Statistics",
        "zarr": "ZarrSource",
    },
)
