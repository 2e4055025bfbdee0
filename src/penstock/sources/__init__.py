"""Where samples are read from: memory, files, Zarr, tables, object storage."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
