"""The rank of this process, what ranks exchange through their store, and their seed."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import prod
from time import monotonic
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from penstock.arguments import LARGEST_SEED, whole_number
from penstock.errors import PlanError
from penstock.order import Topology

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

log = logging.getLogger("penstock")

GATHER_SECONDS = 20.0
DATA_DIMENSIONS = ("dp", "data", "ddp", "replicate", "dp_replicate", "dp_shard", "shard", "fsdp")


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

    Every rank must call it the same number of times. Ranks that have not answered after
    `GATHER_SECONDS`, one limit for all of them, are left out.

    Args:
        text: The text of this rank.
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
    """Return the text of rank 0; every rank must call this the same number of times.

    Args:
        text: The text of this rank; used on rank 0.
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


def topology_from_process_group(group: dist.ProcessGroup | None = None) -> Topology:
    """Return the rank of this process in a process group.

    Args:
        group: The process group; None for the default one.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise PlanError(
            "there is no process group: start the script with torchrun, and call "
            "torch.distributed.init_process_group()"
        )
    return Topology(dist.get_rank(group), dist.get_world_size(group))


def topology_from_environment(environment: Mapping[str, str] | None = None) -> Topology:
    """Return RANK and WORLD_SIZE as ``torchrun`` sets them; rank 0 of 1 if they are not set.

    Args:
        environment: The variables; None for those of this process.

    >>> topology_from_environment({"RANK": "3", "WORLD_SIZE": "8"})
    Topology(rank=3, world=8)
    """
    environment = os.environ if environment is None else environment
    given = {name: environment.get(name) for name in ("RANK", "WORLD_SIZE")}
    if given == {"RANK": None, "WORLD_SIZE": None}:
        return Topology()
    try:
        rank, world = (int(value or "") for value in given.values())
    except ValueError as error:
        raise PlanError(
            f"RANK and WORLD_SIZE must both be numbers, got {given}: start with torchrun"
        ) from error
    return Topology(rank, world)


def topology_from_mesh(mesh: DeviceMesh, dimensions: Sequence[str] | None = None) -> Topology:
    """Return the data-parallel rank of this process in a mesh.

    Processes that differ only in other dimensions (tensor, context, pipeline parallel) have the
    same rank: they get the same batches.

    Args:
        mesh: A mesh with named dimensions.
        dimensions: Names of the data-parallel dimensions; None for those of `DATA_DIMENSIONS`.
    """
    names = mesh.mesh_dim_names
    if names is None:
        raise PlanError("the mesh has no names for its dimensions: pass mesh_dim_names to it")
    wanted = tuple(dimensions or DATA_DIMENSIONS)
    chosen = [name for name in names if name in wanted]
    if not chosen or (dimensions is not None and len(chosen) != len(wanted)):
        raise PlanError(
            f"the mesh has dimensions {names}, not {wanted}: pass the names of the data-parallel "
            "dimensions as dimensions="
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise PlanError("this process is not part of the mesh")
    rank = 0
    for name in chosen:
        rank = rank * mesh.size(names.index(name)) + coordinate[names.index(name)]
    return Topology(rank, prod(mesh.size(names.index(name)) for name in chosen))


# -- seeds


class Seed:
    """The seed in use: passed in, drawn at random, or restored from a state.

    In a process group, every rank uses the seed that rank 0 draws. A seed drawn before the group
    exists (trainers create it after the loaders) is replaced by rank 0's when the group is there.
    If something depends on the drawn seed by then, every rank raises a `PlanError` instead.

    Args:
        seed: A number in [0, 2**64); None draws one.
        name: The argument's name, for messages.

    >>> Seed(42).for_ranks(8)
    42
    """

    def __init__(self, seed: int | None, name: str = "seed") -> None:
        self.given = seed is not None
        self.value = secrets.randbits(32) if seed is None else _checked(seed, name)
        self._shared = self.given  # every rank has this value
        self._logged = self.given
        self._reason: str | None = None  # why it can no longer be replaced
        self._source: Seed | None = None

    @classmethod
    def of(cls, seed: Seed | int | None) -> Seed:
        """Return a seed object itself, or a new one."""
        return seed if isinstance(seed, Seed) else cls(seed)

    def fixed(self, reason: str) -> Seed:
        """Return this seed with a value that cannot change, as if it had been passed in.

        It still raises an error if ranks have different seeds.

        Args:
            reason: What depends on the value: "the data were split".
        """
        self.settle(reason)
        fixed = Seed(self.value)
        fixed._source = self
        return fixed

    def for_ranks(self, world: int) -> int:
        """Return the seed for that number of ranks, the same on all of them.

        Args:
            world: Ranks that share the data. With one, nothing has to be shared.
        """
        if self._source is not None:
            self._source.for_ranks(world)
        if world > 1 and not self._shared:
            self._share(world)
        if not self._logged:
            log.info("using random seed %d; pass seed=%d to reproduce this run", *[self.value] * 2)
            self._logged = True
        return self.value

    def _share(self, world: int) -> None:
        if not has_several_ranks():
            raise PlanError(
                f"seed=None with world_size={world} and no process group: each rank would draw "
                "its own seed; pass the same seed= on every rank"
            )
        if self._reason is not None:
            raise PlanError(
                f"seed=None was drawn before the process group was created, and {self._reason}: "
                "the ranks have different seeds; pass seed=, or create the process group first"
            )
        found = from_rank_zero(self.value)
        self._logged = self._logged and found == self.value
        self.value, self._shared = found, True

    def settle(self, reason: str) -> None:
        """Fix the value: from now on, no other one is accepted.

        Args:
            reason: What depends on the value: "batches were delivered".
        """
        self._reason = self._reason or reason

    def restore(self, seed: int) -> None:
        """Use the value of a state, which every rank loads."""
        self.value, self._shared, self._logged = _checked(seed, "seed"), True, True

    def save(self) -> tuple[int, bool, bool, str | None]:
        """Return what `go_back` needs to undo later changes."""
        return self.value, self._shared, self._logged, self._reason

    def go_back(self, saved: tuple[int, bool, bool, str | None]) -> None:
        """Undo the changes since `save`."""
        self.value, self._shared, self._logged, self._reason = saved


def from_rank_zero(mine: int) -> int:
    """Return the first seed that rank 0 shared in this process group.

    It uses the store and no collective: rank 0 never waits, and the others wait no longer than the
    timeout of the process group.

    Args:
        mine: The seed of this rank.
    """
    store = shared_store("seed")
    if dist.get_rank() == 0:
        return int(store.compare_set("value", "", str(mine)))
    try:
        return int(store.get("value"))
    except RuntimeError as error:  # the store's timeout, or rank 0 is gone and the store with it
        raise PlanError(
            "seed=None takes the seed of rank 0, and rank 0 did not share one in time: build the "
            "same loader on every rank, or pass seed="
        ) from error


def _checked(seed: int, name: str) -> int:
    return whole_number(name, seed, minimum=0, maximum=LARGEST_SEED)
