"""Which sample comes when, as arithmetic: integers and numpy, without I/O, threads or torch."""

from penstock.order.blocks import BlockOrder, Span, StoredOrder
from penstock.order.keys import derive_key
from penstock.order.orders import Order, SequentialOrder, ShuffledOrder, tiles
from penstock.order.permutation import LARGEST, Indices, Permutation
from penstock.order.plan import Plan, PlannedBatch
from penstock.order.skips import Occurrence, Skips
from penstock.order.steps import Cursor, Steps, Topology

__all__ = [
    "LARGEST",
    "BlockOrder",
    "Cursor",
    "Indices",
    "Occurrence",
    "Order",
    "Permutation",
    "Plan",
    "PlannedBatch",
    "SequentialOrder",
    "ShuffledOrder",
    "Skips",
    "Span",
    "Steps",
    "StoredOrder",
    "Topology",
    "derive_key",
    "tiles",
]
