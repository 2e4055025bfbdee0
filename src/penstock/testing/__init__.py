"""Contracts to run on your own sources and loaders: yours get the treatment ours get.

Nothing here needs pytest; every failure is an ``AssertionError`` that says what went wrong.
"""

from penstock.testing.loader_laws import (
    assert_covers,
    assert_resumes_everywhere,
    assert_topology_free,
    same_batch,
)
from penstock.testing.source_contract import SourceContract

__all__ = [
    "SourceContract",
    "assert_covers",
    "assert_resumes_everywhere",
    "assert_topology_free",
    "same_batch",
]
