"""Measurements: what batches contain and how long they take, memory and processor time."""

from penstock.metrics.batches import (
    Delivery,
    arrays_of,
    bytes_of,
    samples_of,
    steady,
    summarize,
)
from penstock.metrics.usage import (
    accelerator_memory,
    accelerator_utilization,
    tree_bytes,
    tree_cpu_seconds,
)

__all__ = [
    "Delivery",
    "accelerator_memory",
    "accelerator_utilization",
    "arrays_of",
    "bytes_of",
    "samples_of",
    "steady",
    "summarize",
    "tree_bytes",
    "tree_cpu_seconds",
]
