"""Images that the package ome-zarr writes are read as its own reader reads them."""

import numpy as np
import pytest
import zarr

from penstock import StreamLoader, open_source

# needs dask, scikit-image and an S3 client: `make matrix` installs it
ome_zarr = pytest.importorskip("ome_zarr", reason="ome-zarr is installed by make matrix alone")

IMAGE = np.random.default_rng(0).integers(0, 4096, (3, 2, 4, 64, 48), np.uint16)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what ome-zarr itself calls
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_levels_are_those_of_its_reader(tmp_path, version):
    from ome_zarr.format import format_from_version
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader
    from ome_zarr.writer import write_image

    path, kind = tmp_path / "image.zarr", format_from_version(version)
    group = zarr.open_group(path, mode="w", zarr_format=kind.zarr_format)
    chunks = {"chunks": (1, 1, 2, 32, 32)}
    write_image(IMAGE, group, axes="tczyx", fmt=kind, storage_options=chunks)
    (node, *_) = Reader(parse_url(path))()
    assert len(node.data) > 1
    for level, stored in enumerate(node.data):
        expected, name = np.asarray(stored), f"s{level}"
        source = open_source(path, fields=[name], along="t")
        assert source.dims == {name: ("c", "z", "y", "x")}
        out = {name: np.empty(expected.shape, expected.dtype)}
        source.read(0, len(source), out)
        assert np.array_equal(out[name], expected)
    whole = open_source(path, along="z")
    assert list(whole.fields) == ["s0"]  # the level of full resolution
    with StreamLoader(whole.select(np.arange(4)), 4, shuffle=False) as loader:
        (batch,) = loader
    assert np.array_equal(batch["s0"], np.moveaxis(np.asarray(node.data[0]), 2, 0))
