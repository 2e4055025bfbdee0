"""The rank of this process: as passed in, or as ``torch.distributed`` reports it."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from penstock.errors import PlanError
from penstock.order import Topology


def ranks() -> int:
    """Return the number of ranks of ``torch.distributed``; 1 if it is not initialised."""
    return current_topology(None, None).world


def current_topology(rank: int | None, world_size: int | None) -> Topology:
    """Return the rank passed in, or that of ``torch.distributed``, or rank 0 of 1.

    Args:
        rank: This rank; None, together with ``world_size``, to ask ``torch.distributed``.
        world_size: Number of ranks.
    """
    if rank is None and world_size is None:
        if dist.is_available() and dist.is_initialized():
            return Topology(dist.get_rank(), dist.get_world_size())
        return Topology()
    if rank is None or world_size is None:
        given = "rank" if world_size is None else "world_size"
        raise PlanError(f"pass both rank and world_size, or neither: only {given} was passed")
    return Topology(rank, world_size)


def has_several_ranks(group: dist.ProcessGroup | None = None) -> bool:
    """Return whether there is a process group of more than one rank.

    Args:
        group: The process group; None for the default one.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return False
    return (group or dist.group.WORLD).size() > 1  # type: ignore[union-attr]


def shared_store(prefix: str) -> Store:
    """Return the key-value store of the default process group, with keys under ``prefix``.

    Unlike a collective, it needs no device, and the ranks need not call it together.

    Args:
        prefix: Separates the keys of one purpose from others.
    """
    store = dist.distributed_c10d._get_default_store()
    return PrefixStore(f"penstock/{prefix}", store)
