"""The spine: order as arithmetic. Pure integers and numpy; no I/O, threads, clock or torch."""

from penstock.order.blocks import BlockOrder, Span
from penstock.order.cursor import Cursor
from penstock.order.keys import derive_key
from penstock.order.orders import Order, SequentialOrder, ShuffledOrder
from penstock.order.permutation import LARGEST, Indices, Permutation
from penstock.order.plan import Plan, PlannedBatch
from penstock.order.steps import Steps, Topology
from penstock.order.tiles import tiles

__all__ = [
    "LARGEST",
    "BlockOrder",
    "Cursor",
    "Indices",
    "Order",
    "Permutation",
    "Plan",
    "PlannedBatch",
    "SequentialOrder",
    "ShuffledOrder",
    "Span",
    "Steps",
    "Topology",
    "derive_key",
    "tiles",
]
