"""Measurements: where the time of a loader goes, what batches contain, memory, processor time."""

from penstock.metrics.batches import (
    Delivery,
    arrays_of,
    bytes_of,
    samples_of,
    steady,
    summarize,
)
from penstock.metrics.recorder import Probe, Recorder, Span, Work, current_recorder
from penstock.metrics.snapshot import STAGES, Histogram, Snapshot, merge
from penstock.metrics.usage import (
    accelerator_memory,
    accelerator_utilization,
    tree_bytes,
    tree_cpu_seconds,
)
from penstock.metrics.verdict import Verdict, verdict_of

__all__ = [
    "Delivery",
    "Histogram",
    "Probe",
    "Recorder",
    "STAGES",
    "Snapshot",
    "Span",
    "Verdict",
    "Work",
    "accelerator_memory",
    "accelerator_utilization",
    "arrays_of",
    "bytes_of",
    "current_recorder",
    "merge",
    "samples_of",
    "steady",
    "summarize",
    "tree_bytes",
    "tree_cpu_seconds",
    "verdict_of",
]
