"""Before the first step: do all ranks have the same plan over the same data?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from penstock.errors import PlanError
from penstock.loaders.base import Loader

Made = TypeVar("Made", bound=Loader)


def agreed(make: Callable[[], Made], group: dist.ProcessGroup | None = None) -> Made:
    """The loader that ``make`` gives, once every rank of the group made the same one.

    A collective call, as `agree`. A rank whose ``make`` fails raises its own error, and the others
    one that tells it: none is left waiting.
    """
    try:
        loader = make()
    except Exception as error:
        if several(group):
            gather({"error": said(error)}, group)
        raise
    agree(loader, group)
    return loader


def agree(loader: Loader, group: dist.ProcessGroup | None = None) -> None:
    """Compare the plan of this loader on all ranks; stop all of them where one differs.

    A collective call: every rank of the group makes it, as for ``DistributedDataParallel``. With
    one process, or none initialised, there is nothing to compare.
    """
    if not several(group):
        return
    try:
        mine = plan_identity(loader)
    except (ValueError, OSError) as error:  # said to all ranks, not only to this one's log
        mine = {"error": said(error)}
    difference = compare(gather(mine, group))
    if difference is not None:
        raise PlanError(f"the ranks are not about to train on the same data: {difference}")


def plan_identity(loader: Loader) -> dict[str, Any]:
    """All that ranks must agree on: place, order, data, batch, chunk and remainder."""
    steps = loader._course.plan.steps
    return {
        **loader.state_dict(),
        "batch_size": steps.batch,
        "world_size": steps.world,
        "drop_last": steps.drop_last,
        "limit_batches": steps.limit,
        "chunk_size": steps.chunk,
    }


def compare(identities: list[dict[str, Any]]) -> str | None:
    """What differs, with the ranks of each value; None where nothing does.

    >>> compare([{"seed": 1}, {"seed": 2}, {"seed": 1}])
    'seed is 1 on ranks 0, 2 but 2 on rank 1'
    >>> compare([{"seed": 1}, {"error": "SourceError: no such file"}])
    'rank 1 has no loader (SourceError: no such file)'
    """
    for rank, identity in enumerate(identities):
        if "error" in identity:
            return f"rank {rank} has no loader ({identity['error']})"
    for name in sorted({name for identity in identities for name in identity}):
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, identity in enumerate(identities):
            ranks[repr(identity.get(name))].append(rank)
        if len(ranks) > 1:
            return f"{name} is " + " but ".join(
                f"{value} on rank{'s' if len(some) > 1 else ''} {', '.join(map(str, some))}"
                for value, some in ranks.items()
            )
    return None


def several(group: dist.ProcessGroup | None = None) -> bool:
    """Is there a process group of more than one rank?"""
    group = group or (dist.group.WORLD if dist.is_available() else None)
    return group is not None and group.size() > 1


def gather(mine: dict[str, Any], group: dist.ProcessGroup | None = None) -> list[dict[str, Any]]:
    """What each rank of the group says of itself, by rank."""
    found: list[dict[str, Any]] = [{}] * dist.get_world_size(group)
    if "cpu:" in dist.get_backend_config(group):
        dist.all_gather_object(found, mine, group=group)
        return found
    # such a group speaks through devices, which nobody may have chosen yet
    ranks = dist.get_process_group_ranks(group)
    aside = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    try:
        dist.all_gather_object(found, mine, group=aside)
    finally:
        dist.destroy_process_group(aside)
    return found


def said(error: BaseException) -> str:
    """An error in one line, for the logs of other ranks."""
    return " ".join(f"{type(error).__name__}: {error}".split())
