"""Many ranks: who this is, and whether all ranks are about to train on the same data."""

from penstock.distributed.agreement import agree, plan_identity
from penstock.distributed.topology import (
    topology_from_environment,
    topology_from_mesh,
    topology_from_process_group,
)

__all__ = [
    "agree",
    "plan_identity",
    "topology_from_environment",
    "topology_from_mesh",
    "topology_from_process_group",
]
