"""The rank of this process: as passed in, or as ``torch.distributed`` reports it."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from penstock.errors import PlanError
from penstock.order import Topology

GATHER_SECONDS = 20.0


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


def gathered_texts(text: str) -> list[str]:
    """Return the texts of all ranks, by rank; of this one alone without a process group.

    Every rank must call it equally often. Ranks that have not answered after `GATHER_SECONDS`, one
    limit for all of them, are left out.

    Args:
        text: Of this rank.
    """
    here = current_topology(None, None)
    if here.world == 1:
        return [text]
    store = shared_store("texts")
    number = store.add(f"calls/{here.rank}", 1)
    store.set(f"{number}/{here.rank}", text)
    found, deadline = [], monotonic() + GATHER_SECONDS
    for key in (f"{number}/{rank}" for rank in range(here.world)):
        left = deadline - monotonic()
        try:
            if left > 0:
                store.wait([key], timedelta(seconds=max(left, 0.001)))
            elif not store.check([key]):
                continue
        except (dist.DistStoreError, RuntimeError):  # the rank is gone
            continue
        found.append(store.get(key).decode())
    return found


def text_of_rank_zero(text: str) -> str:
    """Return the text of rank 0 on every rank; every rank must call it equally often.

    Args:
        text: Of this rank; used on rank 0.
    """
    here = current_topology(None, None)
    if here.world == 1:
        return text
    store = shared_store("rank-zero")
    key = str(store.add(f"calls/{here.rank}", 1))
    if here.rank == 0:
        store.set(key, text)
    return store.get(key).decode()


def shared_store(prefix: str) -> Store:
    """Return the key-value store of the default process group, with keys under ``prefix``.

    Unlike a collective, it needs no device, and the ranks need not call it together.

    Args:
        prefix: Separates the keys of one purpose from others.
    """
    store = dist.distributed_c10d._get_default_store()
    return PrefixStore(f"penstock/{prefix}", store)
