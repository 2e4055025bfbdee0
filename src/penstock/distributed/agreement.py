"""Before the first step: do all ranks have the same plan over the same data?"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from typing import Any, TypeVar

import torch.distributed as dist

from penstock.errors import PlanError
from penstock.loaders.base import Loader
from penstock.seeds import several

HEARD_SECONDS = 3.0  # for the others to hear a reason before the rank that has it is gone

Made = TypeVar("Made", bound=Loader)


def agreed(make: Callable[[], Made], group: dist.ProcessGroup | None = None) -> Made:
    """The loader that ``make`` gives, once every rank of the group made the same one.

    A collective call, as `agree`. A rank whose ``make`` fails raises its own error, and the others
    one with its message: none is left waiting.

    Args:
        make: Called without arguments; returns a loader.
        group: The ranks to compare; None for all of them.
    """
    if not callable(make):
        raise PlanError(f"make must be a function that returns a loader, got {make!r}")
    try:
        loader = make()
    except Exception as error:
        if several(group):
            difference({"error": said(error)}, group)
        raise
    agree(loader, group)
    return loader


def agree(loader: Loader, group: dist.ProcessGroup | None = None) -> None:
    """Compare the plan of this loader on all ranks; stop all of them where one differs.

    A collective call: every rank of the group makes it, as for ``DistributedDataParallel``. With
    one process, or none initialised, there is nothing to compare.

    Args:
        loader: This rank's loader.
        group: The ranks to compare; None for all of them.
    """
    if not isinstance(loader, Loader):
        kind = type(loader).__name__
        raise PlanError(
            f"cannot compare the plan of a {kind} on all ranks: pass a Penstock loader, such as "
            "ChunkedDataLoader or StreamLoader"
        )
    if not several(group):
        return
    try:
        mine = plan_identity(loader)
    except (ValueError, OSError) as error:  # said to all ranks, not only to this one's log
        mine = {"error": said(error)}
    found = difference(mine, group)
    if found is not None:
        raise PlanError(f"the ranks are not about to train on the same data: {found}")


def plan_identity(loader: Loader) -> dict[str, Any]:
    """All that ranks must agree on: place, order, data, batch, chunk and remainder."""
    steps = loader.position.plan.steps
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


def difference(mine: dict[str, Any], group: dist.ProcessGroup | None = None) -> str | None:
    """What differs between what the ranks of a group say of themselves; None where nothing does.

    Through the store of the ranks: a group may speak through devices, which nobody may have chosen
    yet. The group's first rank reads them all, the others its verdict.
    """
    ranks, rank = dist.get_process_group_ranks(group), dist.get_rank(group)
    group_key = blake2b(repr(ranks).encode(), digest_size=8).hexdigest()
    shared = dist.distributed_c10d._get_default_store()
    store = dist.distributed_c10d.PrefixStore(f"penstock/agree/{group_key}", shared)
    turn = store.add(f"turns/{rank}", 1)  # the same on every rank: this is a collective call
    store.set(f"{turn}/{rank}", json.dumps(mine, default=int))  # numpy's numbers as ours
    if rank == 0:
        keys = [f"{turn}/{r}" for r in range(len(ranks))]
        try:
            found = compare([json.loads(each) for each in store.multi_get(keys)])
        except RuntimeError:  # the store's timeout
            silent = [str(r) for r, key in enumerate(keys) if not store.check([key])]
            found = f"nothing was heard of rank {', '.join(silent)} in time"
        store.set(f"{turn}/verdict", json.dumps(found))
    verdict: str | None = json.loads(store.get(f"{turn}/verdict"))
    if verdict is not None:  # a rank may end now, and the store with it: not before all know why
        store.set(f"{turn}/heard/{rank}", "")
        with suppress(RuntimeError):
            heard = [f"{turn}/heard/{r}" for r in range(len(ranks))]
            store.wait(heard, timedelta(seconds=HEARD_SECONDS))
    return verdict


def said(error: BaseException) -> str:
    """An error in one line, for the logs of other ranks."""
    return " ".join(f"{type(error).__name__}: {error}".split())
