"""Streaming: read ahead in threads, place rows while they are hot, hand out views."""

from penstock.streaming.chunks import RandomChunkLoader
from penstock.streaming.latency import ChunkLatencyStats
from penstock.streaming.rollouts import calculate_chunk_params, sample_batch_within_chunk

__all__ = [
    "ChunkLatencyStats",
    "RandomChunkLoader",
    "calculate_chunk_params",
    "sample_batch_within_chunk",
]
