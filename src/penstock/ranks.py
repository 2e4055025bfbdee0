"""Which of how many ranks this is: as passed in, or as ``torch.distributed`` has it now."""

from __future__ import annotations

import torch.distributed as dist

from penstock.errors import PlanError
from penstock.order import Topology


def ranks() -> int:
    """Return the number of ranks of ``torch.distributed``; 1 where it is not initialised."""
    return current_topology(None, None).world


def current_topology(rank: int | None, world_size: int | None) -> Topology:
    """The ranks given, or those of ``torch.distributed`` where it is initialised, or one.

    Args:
        rank: This rank; None, together with ``world_size``, for what ``torch.distributed`` says.
        world_size: Number of ranks.
    """
    if rank is None and world_size is None:
        if dist.is_available() and dist.is_initialized():
            return Topology(dist.get_rank(), dist.get_world_size())
        return Topology()
    if rank is None or world_size is None:
        given = "rank" if world_size is None else "world_size"
        raise PlanError(f"give both rank and world_size, or neither: only {given} was given")
    return Topology(rank, world_size)
