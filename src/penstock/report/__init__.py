"""Reports of measurements: tables, JSON, plots and self-contained pages."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
