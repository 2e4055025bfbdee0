"""Zarr arrays: metadata, then the chunks of a read, then their stored bytes, then decoding."""

from penstock.sources.zarr.source import ZarrSource

__all__ = ["ZarrSource"]
