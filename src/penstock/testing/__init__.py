"""Tests to run on your own sources and loaders: the same ones that Penstock's own must pass.

Nothing here needs pytest; every failure is an ``AssertionError`` that says what went wrong.
"""

from penstock.testing.loader_laws import (
    assert_covers,
    assert_resumes_everywhere,
    assert_topology_free,
    same_batch,
)
from penstock.testing.source_contract import SourceContract, WatchedSource

__all__ = [
    "SourceContract",
    "WatchedSource",
    "assert_covers",
    "assert_resumes_everywhere",
    "assert_topology_free",
    "same_batch",
]
