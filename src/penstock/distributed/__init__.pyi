from penstock.distributed.agreement import agree as agree
from penstock.distributed.agreement import agreed as agreed
from penstock.distributed.agreement import plan_identity as plan_identity
from penstock.distributed.failures import RankError as RankError
from penstock.distributed.failures import together as together
from penstock.ranks import topology_from_environment as topology_from_environment
from penstock.ranks import topology_from_mesh as topology_from_mesh
from penstock.ranks import topology_from_process_group as topology_from_process_group
