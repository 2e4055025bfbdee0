"""Recordings of the simulated fly visual system: columns over time, neurons, splits."""

from penstock.domains.recording.chunk_loader import RandomChunkLoader
from penstock.domains.recording.columns import FlyVisSim, StaticColumnError
from penstock.domains.recording.latency import ChunkLatencyStats
from penstock.domains.recording.layout import find_recording, recording_at
from penstock.domains.recording.loading import (
    ColumnLoader,
    create_zarr_loader,
    load_column_slice,
    load_metadata,
)
from penstock.domains.recording.neurons import TYPE_NAMES, NeuronData
from penstock.domains.recording.rollouts import calculate_chunk_params, sample_batch_within_chunk
from penstock.domains.recording.source import RecordingSource
from penstock.domains.recording.splits import DataSplit
from penstock.domains.recording.writing import write_recording

__all__ = [
    "TYPE_NAMES",
    "ChunkLatencyStats",
    "ColumnLoader",
    "DataSplit",
    "FlyVisSim",
    "NeuronData",
    "RandomChunkLoader",
    "RecordingSource",
    "StaticColumnError",
    "calculate_chunk_params",
    "create_zarr_loader",
    "find_recording",
    "load_column_slice",
    "load_metadata",
    "recording_at",
    "sample_batch_within_chunk",
    "write_recording",
]
