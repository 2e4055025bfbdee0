"""Many ranks: who this is, whether all have the same data, and that none is left waiting."""

from penstock.distributed.together import RankError, together
from penstock.distributed.topology import (
    topology_from_environment,
    topology_from_mesh,
    topology_from_process_group,
)
from penstock.loaders.agreement import agree, agreed, plan_identity

__all__ = [
    "RankError",
    "agree",
    "agreed",
    "plan_identity",
    "together",
    "topology_from_environment",
    "topology_from_mesh",
    "topology_from_process_group",
]
