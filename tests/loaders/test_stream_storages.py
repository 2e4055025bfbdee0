"""The same batches from every storage: memory, .npy, and Zarr in all its layouts."""

import numpy as np
import pytest
import torch

from penstock.loaders.stream import StreamLoader
from penstock.sources import ZarrSource
from tests.cases import each_once

zarr = pytest.importorskip("zarr")
numcodecs = pytest.importorskip("numcodecs")

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")

ROWS = 307  # a short last chunk
CHUNK = 20
GEOMETRIES = [  # block, window, steps
    (None, None, 1),
    (7, 5, 1),  # blocks that cross chunks
    (33, 2, 4),
]
MORE_GEOMETRIES = [*GEOMETRIES, (20, 3, 1), (45, 2, 1), (None, None, 3)]


def blosc(cname, shuffle):
    number = {"shuffle": 1, "bitshuffle": 2}[shuffle]
    return {
        2: numcodecs.Blosc(cname=cname, clevel=3, shuffle=number),
        3: zarr.codecs.BloscCodec(cname=cname, clevel=3, shuffle=shuffle),
    }


CODECS = {
    "raw": {2: None, 3: ()},
    "blosc-lz4-shuffle": blosc("lz4", "shuffle"),
    "blosc-lz4-bitshuffle": blosc("lz4", "bitshuffle"),
    "blosc-zstd-shuffle": blosc("zstd", "shuffle"),
    "blosc-zstd-bitshuffle": blosc("zstd", "bitshuffle"),
    "zstd": {2: numcodecs.Zstd(level=3), 3: zarr.codecs.ZstdCodec(level=3)},
    "gzip": {2: numcodecs.GZip(level=3), 3: zarr.codecs.GzipCodec(level=3)},
}


def some_array(dtype="f4"):
    values = np.random.default_rng(1).integers(0, 90, (ROWS, 6, 2))
    return values.astype(dtype)


def write(path, array, codec, version, *, columns=6, shards=None):
    stored = zarr.create_array(
        path,
        shape=array.shape,
        dtype=array.dtype,
        chunks=(CHUNK, columns, 2),
        shards=shards,
        compressors=CODECS[codec][version],
        zarr_format=version,
    )
    stored[...] = array
    return path


def expect_same(source, array, geometries=GEOMETRIES):
    """An epoch and a bit of each geometry, against the same loader over memory, and the array."""
    for block, window, steps in geometries:
        if steps > 1 and isinstance(source, list):
            continue  # refused: samples would cross two pieces
        options = {"block_samples": block, "window_blocks": window, "steps": steps}
        with StreamLoader(source, 16, **options) as loader:
            for epoch in range(2):
                positions = [loader.positions_at(step, epoch) for step in range(len(loader))]
                samples = loader.plan.order.at(epoch, np.stack(positions).reshape(-1))
                for step, batch in enumerate(loader):
                    wanted = samples[step * 16 : (step + 1) * 16]
                    rows = array[wanted[:, None] + np.arange(steps)]
                    want = torch.from_numpy(rows if steps > 1 else rows[:, 0])
                    assert torch.equal(batch, want), (block, window, steps, epoch, step)


@pytest.mark.parametrize(("codec", "version"), each_once(list(CODECS), [2, 3]))
def test_zarr_gives_what_memory_holds(tmp_path, codec, version):
    array = some_array()
    path = write(tmp_path / "x.zarr", array, codec, version)
    assert ZarrSource(path).reader == "direct"
    expect_same(str(path), array)


@pytest.mark.parametrize("codec", CODECS)
def test_sharded_zarr_gives_what_memory_holds(tmp_path, codec):
    array = some_array()
    path = write(tmp_path / "x.zarr", array, codec, 3, shards=(4 * CHUNK, 6, 2))
    expect_same(path, array)


@pytest.mark.parametrize("codec", ["raw", "blosc-lz4-shuffle"])
def test_chunks_split_along_columns_too_give_what_memory_holds(tmp_path, codec):
    array = some_array("i2")
    expect_same(write(tmp_path / "x.zarr", array, codec, 2, columns=4), array, MORE_GEOMETRIES)


def test_zarr_python_gives_what_memory_holds(tmp_path):
    array = some_array("f8")
    path = write(tmp_path / "x.zarr", array, "blosc-lz4-shuffle", 3)
    expect_same(ZarrSource(path, direct=False), array)


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", "f8", "c16", "?", ">f4", ">i2"])
def test_zarr_of_any_dtype_gives_what_memory_holds(tmp_path, dtype):
    array = some_array(dtype)
    path = write(tmp_path / "x.zarr", array, "zstd", 2)
    expect_same(path, array.astype(array.dtype.newbyteorder("=")))


@pytest.mark.parametrize("dtype", ["f4", "u1", ">i4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_gives_what_memory_holds(tmp_path, dtype, order):
    array = some_array(dtype)
    np.save(tmp_path / "x.npy", np.asarray(array, order=order))
    expect_same(tmp_path / "x.npy", array.astype(array.dtype.newbyteorder("=")))


def test_memory_gives_itself():
    array = some_array()
    expect_same(array, array, MORE_GEOMETRIES)
    expect_same(torch.from_numpy(array), array)
    expect_same(np.asfortranarray(array), array)
    expect_same([array[:100], array[100:101], array[101:]], array)


def test_a_group_of_arrays_gives_fields_that_stay_together(tmp_path):
    x, y = some_array(), np.arange(ROWS)
    group = zarr.create_group(tmp_path / "g.zarr")
    for name, array, chunk in (("x", x, CHUNK), ("y", y, 50)):
        chunks = (chunk, *array.shape[1:])
        group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=chunks)[...] = array
    with StreamLoader(tmp_path / "g.zarr", 16) as loader:
        assert loader.block_samples == CHUNK  # of the widest
        for step, batch in enumerate(loader):
            assert batch["y"].tolist() == loader.samples_at(step, 0).tolist()
            assert torch.equal(batch["x"], torch.from_numpy(x[batch["y"]]))


def test_what_torch_has_no_tensor_for_is_refused(tmp_path):
    from penstock.errors import PlanError

    dates = np.zeros(20, dtype="datetime64[s]")
    with pytest.raises(PlanError, match=r"datetime64.*convert it, or name the other fields"):
        StreamLoader(dates, 4)
