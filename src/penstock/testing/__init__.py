"""Tests to run on your own sources and loaders: the same ones that Penstock's own must pass.

Nothing here needs pytest; every failure is an ``AssertionError`` that says what went wrong.
"""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
