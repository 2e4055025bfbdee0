"""Fields of different chunking: a coarse one costs no memory, and is decoded once."""

import numpy as np
import pytest
import zarr

from penstock import StreamLoader, open_source
from penstock.testing import WatchedSource

X = np.arange(4000 * 500, dtype="f4").reshape(4000, 500)
Y = np.arange(4000)


@pytest.fixture
def path(tmp_path):
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(64, 500))
    zarr.create_array(tmp_path / "y.zarr", data=Y, chunks=(4000,))
    np.save(tmp_path / "y.npy", Y)
    return tmp_path


def labels(path, kind):
    return {"memory": Y, "zarr": path / "y.zarr", "npy": path / "y.npy"}[kind]


@pytest.mark.parametrize("kind", ["memory", "zarr", "npy"])
def test_labels_beside_rows_cost_nothing(path, kind):
    alone = StreamLoader(path / "x.zarr", 50, window_blocks=4)
    both = StreamLoader({"x": path / "x.zarr", "y": labels(path, kind)}, 50, window_blocks=4)
    assert both.block_samples == alone.block_samples == 64
    assert both.buffer_bytes <= 1.05 * alone.buffer_bytes
    with both:
        for step, batch in enumerate(both):
            samples = both.samples_at(step, 0)
            assert np.array_equal(batch["y"], samples) and np.array_equal(batch["x"], X[samples])


def test_a_field_in_one_chunk_is_read_once(path):
    watched = WatchedSource(path / "y.zarr", block_samples=4000)
    with StreamLoader({"x": path / "x.zarr", "y": watched}, 50, window_blocks=4) as loader:
        for _ in range(3):
            assert len(list(loader)) == 80
        assert watched.reads == [(0, 4000)]
    assert len(list(loader)) == 80  # after close() it is loaded again
    loader.close()


def test_a_coarse_field_that_is_too_large_to_keep_enlarges_the_block(tmp_path):
    rows = np.arange(16_384 * 30, dtype="f4").reshape(16_384, 30)
    zarr.create_array(tmp_path / "x.zarr", data=rows, chunks=(64, 30))
    zarr.create_array(tmp_path / "y.zarr", data=rows[:, :20].copy(), chunks=(256, 20))
    source = open_source({"x": tmp_path / "x.zarr", "y": tmp_path / "y.zarr"})
    with StreamLoader(source, 16, memory_budget="8MB") as loader:
        assert loader.block_samples == 256
        samples = loader.samples_at(0, 0)
        batch = next(iter(loader))
        assert np.array_equal(batch["x"], rows[samples])
        assert np.array_equal(batch["y"], rows[samples, :20])
