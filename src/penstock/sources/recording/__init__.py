"""Recordings of the simulated fly visual system: columns over time, neurons, splits."""

from penstock.sources.recording.columns import FlyVisSim, StaticColumnError
from penstock.sources.recording.layout import find_recording, recording_at
from penstock.sources.recording.loading import (
    ColumnLoader,
    create_zarr_loader,
    load_column_slice,
    load_metadata,
)
from penstock.sources.recording.neurons import TYPE_NAMES, NeuronData
from penstock.sources.recording.source import RecordingSource
from penstock.sources.recording.splits import DataSplit
from penstock.sources.recording.writing import write_recording

__all__ = [
    "TYPE_NAMES",
    "ColumnLoader",
    "DataSplit",
    "FlyVisSim",
    "NeuronData",
    "RecordingSource",
    "StaticColumnError",
    "create_zarr_loader",
    "find_recording",
    "load_column_slice",
    "load_metadata",
    "recording_at",
    "write_recording",
]
