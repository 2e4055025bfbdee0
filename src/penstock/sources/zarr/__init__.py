"""Zarr arrays: metadata -> grid of chunks -> where their bytes are -> decoded into place."""

from penstock.sources.zarr.source import ZarrSource

__all__ = ["ZarrSource"]
