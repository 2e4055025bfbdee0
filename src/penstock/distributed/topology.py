"""The data-parallel rank of this process, from a process group, the environment or a mesh."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from penstock.errors import PlanError
from penstock.order import Topology

DATA_DIMENSIONS = ("dp", "data", "ddp", "replicate", "dp_replicate", "dp_shard", "shard", "fsdp")


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
    same rank: they get equal batches.

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
