"""The data of the campaigns: the same rows in every kind of storage.

A row holds its own number in every column, so that a row which is torn or comes from elsewhere is
noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import torch
import zarr
from torch.utils.data import Dataset

from penstock import Source, build_steering_directory, open_source
from tests.s3_server import Server

ROWS, COLUMNS, CHUNK = 480, 6, 20
STORAGES = ("memory", "npy", "zarr raw", "zarr blosc", "zarr sharded", "parquet", "arrow", "s3")


@dataclass(frozen=True, slots=True)
class Storages:
    """Where the data is: a folder, and an S3 server over it if one was started."""

    folder: Path
    server: Server | None = None

    def source(self, storage: str) -> Source:
        """The rows in a kind of storage."""
        if storage == "memory":
            return open_source(rows())
        if storage == "s3":
            assert self.server is not None
            return open_source("s3://bucket/zarr blosc.zarr", **self.server.options())
        suffix = "zarr" if storage.startswith("zarr") else storage
        return open_source(self.folder / "bucket" / f"{storage}.{suffix}")

    @property
    def steering(self) -> Path:
        """A directory of a steering dataset."""
        return self.folder / "steering"


def rows() -> np.ndarray:
    """Row ``i`` is ``COLUMNS`` times the number ``i``."""
    return np.repeat(np.arange(ROWS, dtype=np.int64)[:, None], COLUMNS, axis=1)


def make_storages(folder: Path) -> None:
    """Write the rows in every kind of storage."""
    data, bucket = rows(), folder / "bucket"
    bucket.mkdir()
    np.save(bucket / "npy.npy", data)
    layouts: dict[str, dict[str, Any]] = {
        "zarr raw": {"compressors": ()},
        "zarr blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle")},
        "zarr sharded": {"shards": (4 * CHUNK, COLUMNS)},
    }
    for name, layout in layouts.items():
        array = zarr.create_array(
            bucket / f"{name}.zarr",
            shape=data.shape,
            dtype=data.dtype,
            chunks=(CHUNK, COLUMNS),
            **layout,
        )
        array[...] = data
    column = pa.FixedSizeListArray.from_arrays(pa.array(data.reshape(-1)), COLUMNS)
    table = pa.table({"x": column})
    pq.write_table(table, bucket / "parquet.parquet", row_group_size=CHUNK)
    with pa.ipc.new_file(bucket / "arrow.arrow", table.schema) as file:
        for batch in table.to_batches(max_chunksize=CHUNK):
            file.write_batch(batch)
    build_steering_directory(folder / "steering", pairs=400, embedding_dim=4)


class Rows(Dataset[torch.Tensor]):
    """A map-style dataset over a source, as a user of worker processes writes it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        ((name, field),) = self.source.fields.items()
        out = np.empty((len(indices), *field.shape), field.dtype)
        self.source.take(np.asarray(indices, dtype=np.int64), {name: out})
        return list(torch.from_numpy(out))


def numbers(batch: Any) -> list[int]:
    """The numbers of the rows in a batch; raises for a row that is torn."""
    if isinstance(batch, dict):
        (batch,) = batch.values()
    if isinstance(batch, tuple | list):
        (batch,) = batch
    batch = torch.as_tensor(batch)
    if not bool((batch == batch[:, :1]).all()):
        raise AssertionError(f"a row is torn: {batch.tolist()}")
    return [int(number) for number in batch[:, 0]]
