"""Recordings of the simulated fly visual system: columns over time, neurons, chunks, rollouts."""

from penstock.domains.recording.chunk_loader import ChunkLatencyStats, RandomChunkLoader
from penstock.domains.recording.layout import (
    FlyVisSim,
    StaticColumnError,
    find_recording,
    recording_at,
)
from penstock.domains.recording.neurons import TYPE_NAMES, NeuronData
from penstock.domains.recording.sampling import (
    DataSplit,
    calculate_chunk_params,
    sample_batch_within_chunk,
)
from penstock.domains.recording.source import (
    ColumnLoader,
    RecordingSource,
    create_zarr_loader,
    load_column_slice,
    load_metadata,
)
from penstock.domains.recording.writer import write_recording

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
