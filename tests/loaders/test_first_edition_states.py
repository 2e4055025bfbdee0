"""States that release 0.1.0 wrote continue with the same samples."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import zarr

from penstock import ChunkedDataLoader, RecordingSource, StreamLoader

STATES = json.loads(Path(__file__).with_name("first_edition_states.json").read_text())


def loader(kind, folder):
    """The loader that wrote the state, as it was called then."""
    if kind == "chunked":
        return ChunkedDataLoader(torch.arange(1000), 32, 7, seed=3)
    if kind == "epochs":
        return ChunkedDataLoader(torch.arange(1000), 32, shuffle=True, seed=3)
    rows = np.arange(8000, dtype=np.float32).reshape(2000, 4)
    if kind == "npy":
        np.save(folder / "rows.npy", rows)
        blocks = {"block_samples": 50, "window_blocks": 8}
        return StreamLoader(folder / "rows.npy", 64, chunk_size=10, seed=5, **blocks)
    if kind == "table":
        table = {"n": np.arange(2000).tolist(), "half": (np.arange(2000) / 2).tolist()}
        data = datasets.Dataset.from_dict(table)
        return StreamLoader(data, 64, chunk_size=10, seed=5, memory_budget="64MB")
    if kind == "recording":
        whole = np.arange(2000 * 6 * 9, dtype=np.float32).reshape(2000, 6, 9)
        zarr.create_array(folder / "r.zarr", data=whole, chunks=(100, 6, 9), zarr_format=2)
        data = RecordingSource(folder / "r", columns=["VOLTAGE"], neurons={"VOLTAGE": 4})
        return StreamLoader(data, 64, chunk_size=10, seed=5, memory_budget="64MB")
    zarr.create_array(folder / "rows.zarr", data=rows, chunks=(100, 4))
    return StreamLoader(folder / "rows.zarr", 64, chunk_size=10, seed=5, memory_budget="64MB")


@pytest.mark.parametrize("kind", STATES)
def test_the_next_batch_is_the_one_that_came_next_then(kind, tmp_path):
    with loader(kind, tmp_path) as resumed:
        resumed.load_state_dict(STATES[kind]["state"])
        assert resumed.state_dict() == STATES[kind]["state"]
        batch = next(iter(resumed))
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch
        assert first.reshape(-1)[:4].tolist() == STATES[kind]["next"]
