"""Measurements: where the time of a loader goes, what batches contain, memory, processor time."""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.metrics.batches import Delivery as Delivery
    from penstock.metrics.batches import arrays_of as arrays_of
    from penstock.metrics.batches import bytes_of as bytes_of
    from penstock.metrics.batches import samples_of as samples_of
    from penstock.metrics.batches import steady as steady
    from penstock.metrics.batches import summarize as summarize
    from penstock.metrics.recorder import Probe as Probe
    from penstock.metrics.recorder import Recorder as Recorder
    from penstock.metrics.recorder import Span as Span
    from penstock.metrics.recorder import Work as Work
    from penstock.metrics.recorder import current_recorder as current_recorder
    from penstock.metrics.snapshot import STAGES as STAGES
    from penstock.metrics.snapshot import Histogram as Histogram
    from penstock.metrics.snapshot import Snapshot as Snapshot
    from penstock.metrics.snapshot import merge as merge
    from penstock.metrics.telemetry import Gauges as Gauges
    from penstock.metrics.telemetry import export_to_opentelemetry as export_to_opentelemetry
    from penstock.metrics.telemetry import export_to_prometheus as export_to_prometheus
    from penstock.metrics.usage import accelerator_memory as accelerator_memory
    from penstock.metrics.usage import accelerator_utilization as accelerator_utilization
    from penstock.metrics.usage import tree_bytes as tree_bytes
    from penstock.metrics.usage import tree_cpu_seconds as tree_cpu_seconds
    from penstock.metrics.verdict import Verdict as Verdict
    from penstock.metrics.verdict import verdict_of as verdict_of

# lazily: batches and usage need torch, and the sources, which have probes, do not
__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": "Delivery arrays_of bytes_of samples_of steady summarize",
        "recorder": "Probe Recorder Span Work current_recorder",
        "snapshot": "STAGES Histogram Snapshot merge",
        "telemetry": "Gauges export_to_opentelemetry export_to_prometheus",
        "usage": "accelerator_memory accelerator_utilization tree_bytes tree_cpu_seconds",
        "verdict": "Verdict verdict_of",
    },
)
