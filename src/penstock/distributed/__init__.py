"""Several ranks: which one this is, whether all have the same data, and failures of one of them."""

from penstock.distributed.agreement import agree, agreed, plan_identity
from penstock.distributed.failures import RankError, together
from penstock.distributed.topology import (
    topology_from_environment,
    topology_from_mesh,
    topology_from_process_group,
)

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
