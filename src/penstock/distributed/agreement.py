"""Before the first step: do all ranks have the same plan over the same data?"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch.distributed as dist

from penstock.errors import PlanError
from penstock.loaders import Loader


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


def agree(loader: Loader, group: dist.ProcessGroup | None = None) -> None:
    """Compare the plan of this loader on all ranks; stop all of them where one differs.

    A collective call: every rank of the group makes it, as for ``DistributedDataParallel``. With
    one process, or none initialised, there is nothing to compare.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return
    try:
        mine: dict[str, Any] = plan_identity(loader)
    except (ValueError, OSError) as error:  # said to all ranks, not only to this one's log
        mine = {"error": f"{type(error).__name__}: {error}"}
    found: list[dict[str, Any]] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group=group)
    difference = compare(found)
    if difference is not None:
        raise PlanError(f"the ranks are not about to train on the same data: {difference}")


def compare(identities: list[dict[str, Any]]) -> str | None:
    """What differs, with the ranks of each value; None where nothing does.

    >>> compare([{"seed": 1}, {"seed": 2}, {"seed": 1}])
    'seed is 1 on ranks 0, 2 but 2 on rank 1'
    """
    names = sorted({name for identity in identities for name in identity})
    for name in ("error", *names):
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, identity in enumerate(identities):
            ranks[repr(identity.get(name))].append(rank)
        if len(ranks) > 1:
            return f"{name} is " + " but ".join(
                f"{value} on rank{'s' if len(some) > 1 else ''} {', '.join(map(str, some))}"
                for value, some in ranks.items()
            )
    return None
