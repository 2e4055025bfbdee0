"""One small file or folder of every kind that is read, for tests that damage them."""

from __future__ import annotations

import io
import json
import tarfile
from functools import partial

import anndata
import h5py
import netCDF4
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import scipy.sparse
import soundfile
import zarr
from PIL import Image

from penstock import open_source
from penstock.sources.ragged_rows import new_buffers

X = np.random.default_rng(0).normal(size=(40, 8, 6)).astype(np.float32)
TABLE = pa.table({"x": X[:, 0, 0], "text": ["a" * (i % 5) for i in range(40)]})


def write_npy(path):
    np.save(path, X)


def write_zarr(path):
    zarr.create_array(path, data=X, chunks=(10, 8, 6))


def write_shards(path):
    zarr.create_array(path, data=X, chunks=(5, 8, 6), shards=(20, 8, 6))


def write_h5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("g/x", data=X, chunks=(10, 8, 6), compression="gzip")


def write_parquet(path):
    pq.write_table(TABLE, path, row_group_size=20)


def write_jsonl(path):
    path.write_text("".join(json.dumps({"a": i, "t": "x" * (i % 7)}) + "\n" for i in range(40)))


def write_tar(path):
    with tarfile.open(path, "w") as archive:
        for i in range(10):
            content = io.BytesIO()
            np.save(content, X[i])
            for suffix, raw in (("npy", content.getvalue()), ("txt", b"t" * i)):
                member = tarfile.TarInfo(f"{i:04}.{suffix}")
                member.size = len(raw)
                archive.addfile(member, io.BytesIO(raw))


def write_arrays(path):
    path.mkdir()
    for i in range(5):
        np.save(path / f"{i}.npy", X[i])


def write_zip(path, compression=0):
    with zarr.storage.ZipStore(path, mode="w", compression=compression) as store:
        zarr.create_array(store, data=X, chunks=(10, 8, 6))


def write_nc(path, form, records=False):
    with netCDF4.Dataset(path, "w", format=form) as file:
        for name, size in (("time", None if records else 40), ("y", 8)):
            file.createDimension(name, size)
        file.createVariable("x", "f4", ("time", "y"))[:] = X[:, :, 0]


def write_arrow(path, new=pa.ipc.new_file, table=TABLE):
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table)


def write_cells(path):
    genes = pd.DataFrame(index=pd.Index([f"g{i}" for i in range(20)], dtype=object))
    names = pd.Index([f"c{i}" for i in range(40)], dtype=object)
    matrix = scipy.sparse.random(40, 20, 0.2, "csr", np.float32, random_state=1)
    cells = anndata.AnnData(matrix, obs=pd.DataFrame({"n": np.arange(40)}, index=names), var=genes)
    cells.write_h5ad(path)


def write_tokens(path):
    header = np.zeros(256, np.int32)  # of llm.c
    header[:3] = 20240520, 1, X.size * 2
    path.write_bytes(header.tobytes() + X.tobytes())


def write_images(path, suffix, **options):
    path.mkdir()
    for i in range(5):
        pixels = np.random.default_rng(i).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(path / f"{i}.{suffix}", **options)


def write_sounds(path, suffix):
    path.mkdir()
    for i in range(5):
        soundfile.write(path / f"{i}.{suffix}", X[i].ravel() / 5, 8000)


KINDS = {
    "x.npy": write_npy,
    "x.bin": lambda path: X.view(np.uint16).tofile(path),
    "tokens.bin": write_tokens,
    "x.zarr": write_zarr,
    "shards.zarr": write_shards,
    "x.zarr.zip": write_zip,
    "deflated.zarr.zip": partial(write_zip, compression=8),
    "x.h5": write_h5,
    "x.h5ad": write_cells,
    "x.nc": partial(write_nc, form="NETCDF3_CLASSIC"),
    "offset.nc": partial(write_nc, form="NETCDF3_64BIT_OFFSET", records=True),
    "data.nc": partial(write_nc, form="NETCDF3_64BIT_DATA", records=True),
    "4.nc": partial(write_nc, form="NETCDF4", records=True),
    "x.parquet": write_parquet,
    "x.arrow": write_arrow,
    "stream.arrow": partial(write_arrow, new=pa.ipc.new_stream),
    "x.feather": lambda path: pyarrow.feather.write_feather(TABLE, path, compression="lz4"),
    "x.jsonl": write_jsonl,
    "x.tar": write_tar,
    "arrays": write_arrays,
    **{
        suffix: partial(write_images, suffix=suffix)
        for suffix in ("png", "jpg", "bmp", "tif", "webp", "ppm")
    },
    "deflated tif": partial(write_images, suffix="tif", compression="tiff_deflate"),
    **{
        suffix: partial(write_sounds, suffix=suffix)
        for suffix in ("wav", "flac", "ogg", "aiff", "mp3")
    },
}


def opened(path):
    return open_source(path, **({"dtype": "uint16"} if path.suffix == ".bin" else {}))


def read_all(source):
    found = new_buffers(source, source.fields, 0, len(source))
    source.read(0, len(source), found)
    return {name: rows.copy() for name, rows in found.items()}


def files_of(path):
    return sorted([path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()])
