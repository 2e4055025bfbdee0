"""Chunk sizes of a dataset's partitions: given, or the whole of the partition."""

from __future__ import annotations

from typing import Any

from penstock.arguments import choice, whole_number
from penstock.errors import ConfigError
from penstock.loaders.sampler import ORDERS
from penstock.ranks import current_topology


def check_chunk_size(name: str, batches: Any) -> int | None:
    """A chunk size in batches, refused below one; None for none.

    >>> check_chunk_size("val_chunk_size", 200)
    200
    """
    if batches is None:
        return None
    batches = whole_number(name, batches, error=ConfigError)
    return whole_number(name, batches, minimum=1, unit="batch")


def check_order(chunk_order: str) -> str:
    """An order by name."""
    return choice("chunk_order", chunk_order, ORDERS, error=ConfigError)


def partition_batches(
    dataset: Any, batch_size: int | None, rank: int | None = None, world_size: int | None = None
) -> int | None:
    """Batches of a whole partition on this rank; None where there is none, or it has no length.

    >>> partition_batches(range(100), 32), partition_batches(None, 32)
    (4, None)
    """
    if dataset is None or not hasattr(dataset, "__len__"):
        return None
    step = (batch_size or 1) * current_topology(rank, world_size).world
    return -(-len(dataset) // step)
