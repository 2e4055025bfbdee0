"""Which sample comes when, as arithmetic: integers and numpy, without I/O, threads or torch."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
