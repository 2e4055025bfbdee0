"""Tables: pyarrow, Parquet, Arrow files and Hugging Face datasets."""

from penstock.sources.arrow.source import ArrowSource

__all__ = ["ArrowSource"]
