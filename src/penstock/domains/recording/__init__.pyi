from penstock.domains.recording.chunk_loader import ChunkLatencyStats as ChunkLatencyStats
from penstock.domains.recording.chunk_loader import RandomChunkLoader as RandomChunkLoader
from penstock.domains.recording.layout import TYPE_NAMES as TYPE_NAMES
from penstock.domains.recording.layout import FlyVisSim as FlyVisSim
from penstock.domains.recording.layout import NeuronData as NeuronData
from penstock.domains.recording.layout import StaticColumnError as StaticColumnError
from penstock.domains.recording.layout import find_recording as find_recording
from penstock.domains.recording.layout import recording_at as recording_at
from penstock.domains.recording.sampling import DataSplit as DataSplit
from penstock.domains.recording.sampling import calculate_chunk_params as calculate_chunk_params
from penstock.domains.recording.sampling import (
    sample_batch_within_chunk as sample_batch_within_chunk,
)
from penstock.domains.recording.source import ColumnLoader as ColumnLoader
from penstock.domains.recording.source import RecordingSource as RecordingSource
from penstock.domains.recording.source import create_zarr_loader as create_zarr_loader
from penstock.domains.recording.source import load_column_slice as load_column_slice
from penstock.domains.recording.source import load_metadata as load_metadata
from penstock.domains.recording.source import write_recording as write_recording
