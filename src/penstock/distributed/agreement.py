"""A check before training: all ranks must have the same plan over the same data."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from penstock.errors import PlanError, one_line
from penstock.fingerprints import short_digest
from penstock.loaders.base import Loader
from penstock.ranks import has_several_ranks, shared_store

DELIVERY_SECONDS = 3.0  # to wait until the other ranks have received a reason

Made = TypeVar("Made", bound=Loader)


def agreed(make: Callable[[], Made], group: dist.ProcessGroup | None = None) -> Made:
    """Return the loader that ``make`` returns, once all ranks of the group have the same one.

    This is a collective call, like `agree`. If ``make`` fails on a rank, that rank raises its own
    error and the others a `PlanError` with its message: no rank keeps waiting.

    Args:
        make: Called without arguments; returns a loader.
        group: The ranks to compare; None for all of them.
    """
    if not callable(make):
        raise PlanError(f"make must be a function that returns a loader, got {make!r}")
    try:
        loader = make()
    except Exception as error:
        if has_several_ranks(group):
            difference({"error": one_line(error)}, group)
        raise
    agree(loader, group)
    return loader


def agree(loader: Loader, group: dist.ProcessGroup | None = None) -> None:
    """Compare the plan of this loader on all ranks, and raise an error on each if one differs.

    This is a collective call: every rank of the group makes it, as for
    ``DistributedDataParallel``. Without a process group, or with one rank, it does nothing.

    Args:
        loader: The loader of this rank.
        group: The ranks to compare; None for all of them.

    Raises:
        PlanError: The ranks have different plans or data, or one has no loader.
    """
    if not isinstance(loader, Loader):
        kind = type(loader).__name__
        raise PlanError(
            f"cannot compare the plan of a {kind} on all ranks: pass a Penstock loader, such as "
            "ChunkedDataLoader or StreamLoader"
        )
    if not has_several_ranks(group):
        return
    try:
        mine = plan_identity(loader)
    except (ValueError, OSError) as error:  # for all ranks, and not only in the log of this one
        mine = {"error": one_line(error)}
    found = difference(mine, group)
    if found is not None:
        raise PlanError(f"the ranks would not train on the same data: {found}")


def plan_identity(loader: Loader) -> dict[str, Any]:
    """Return what ranks must agree on: position, order, data, batch, chunk and remainder.

    Args:
        loader: A loader of Penstock.
    """
    steps = loader.position.plan.steps
    return {
        **loader.state_dict(),
        "batch_size": steps.batch,
        "world_size": steps.world,
        "drop_last": steps.drop_last,
        "limit_batches": steps.limit,
        "chunk_size": loader.position.chunk,
    }


def compare(identities: list[dict[str, Any]]) -> str | None:
    """Return what differs, with the ranks of each value; None if nothing does.

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
    """Return what differs between the values of the ranks of a group; None if nothing does.

    It uses the store of the process group: a collective may need a device, which may not have been
    selected yet. The first rank of the group compares, the others read its result.

    Args:
        mine: What is compared.
        group: The ranks to compare; None for all of them.
    """
    ranks, rank = dist.get_process_group_ranks(group), dist.get_rank(group)
    group_key = short_digest([repr(ranks).encode()])
    store = shared_store(f"agree/{group_key}")
    call = store.add(f"calls/{rank}", 1)  # the same on every rank: this is a collective call
    store.set(f"{call}/{rank}", json.dumps(mine, default=int))  # default: numpy's numbers
    if rank == 0:
        keys = [f"{call}/{r}" for r in range(len(ranks))]
        try:
            found = compare([json.loads(each) for each in store.multi_get(keys)])
        except RuntimeError:  # the store's timeout
            silent = [str(r) for r, key in enumerate(keys) if not store.check([key])]
            found = f"rank {', '.join(silent)} did not answer in time"
        store.set(f"{call}/verdict", json.dumps(found))
    verdict: str | None = json.loads(store.get(f"{call}/verdict"))
    if verdict is not None:  # this rank may exit, and the store with it: first wait for the others
        store.set(f"{call}/received/{rank}", "")
        with suppress(RuntimeError):
            received = [f"{call}/received/{r}" for r in range(len(ranks))]
            store.wait(received, timedelta(seconds=DELIVERY_SECONDS))
    return verdict
