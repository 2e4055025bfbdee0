"""Measurements: where the time of a loader goes, what batches contain, memory, processor time."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.metrics.recorder import Probe, Recorder, Span, Work, current_recorder
from penstock.metrics.snapshot import STAGES, Histogram, Snapshot, merge
from penstock.metrics.verdict import Verdict, verdict_of

if TYPE_CHECKING:
    from penstock.metrics.batches import Delivery as Delivery
    from penstock.metrics.batches import arrays_of as arrays_of
    from penstock.metrics.batches import bytes_of as bytes_of
    from penstock.metrics.batches import samples_of as samples_of
    from penstock.metrics.batches import steady as steady
    from penstock.metrics.batches import summarize as summarize
    from penstock.metrics.usage import accelerator_memory as accelerator_memory
    from penstock.metrics.usage import accelerator_utilization as accelerator_utilization
    from penstock.metrics.usage import tree_bytes as tree_bytes
    from penstock.metrics.usage import tree_cpu_seconds as tree_cpu_seconds

# imported when they are used: they need torch, and the sources, which have probes, do not
_LATER = {
    "batches": "Delivery arrays_of bytes_of samples_of steady summarize",
    "usage": "accelerator_memory accelerator_utilization tree_bytes tree_cpu_seconds",
}
_HOME = {name: module for module, names in _LATER.items() for name in names.split()}

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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
