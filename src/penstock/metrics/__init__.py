"""What was measured: durations, memory, processor time. Recorded low, explained high."""

from penstock.metrics.durations import Delivery, steady, summarize
from penstock.metrics.processes import tree_bytes, tree_cpu_seconds

__all__ = ["Delivery", "steady", "summarize", "tree_bytes", "tree_cpu_seconds"]
