"""Other loaders over the same rows, each tuned, each on the storage it likes best.

``pip install 'penstock[bench]'`` installs those that claims compare with. LitData is measured where
it is installed; it is in no extra, because it needs torchvision, and botocore, which cannot be
installed beside the pinned python-dateutil. One that is missing is reported as such.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
import zarrs  # noqa: F401 - registers its pipeline
from torch.utils.data import DataLoader, Dataset

WORKERS = 2
BATCH = 256
AHEAD = 8  # batches not counted; some have more ready, which counts in their favour

Batches = Callable[[], Iterator[torch.Tensor]]
Peers = dict[str, Batches | None]  # None: not installed
REQUIRED = ("scdataset", "grain")  # without these there is no "best of the others"


class Rows(Dataset):
    """One row of an array a time, as torch's documentation shows it; opened where it is used."""

    def __init__(self, path: Path) -> None:
        self.path, self.array = path, None
        self.length = opened(path).shape[0]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.array is None:
            self.array = opened(self.path)
        return torch.from_numpy(np.array(self.array[index]))


class RowsAtOnce(Rows):
    """A whole batch of rows in one call: what a tuned torch dataset does."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        if self.array is None:
            self.array = opened(self.path)
        return torch.from_numpy(self.array[np.asarray(indices)])


def opened(path: Path) -> Any:
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r")
    return ZarrRows(path)


class ZarrRows:
    """A Zarr array through the fastest codec pipeline there is, with a length."""

    def __init__(self, path: Path) -> None:
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
        self.path, self.array = path, zarr.open_array(path, mode="r")
        self.shape = self.array.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray:
        return np.asarray(self.array[key])

    def __reduce__(self) -> tuple[type, tuple[Path]]:
        return ZarrRows, (self.path,)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def peers(folder: Path, storage: Path) -> Peers:
    """Name -> endless batches; None where it is not installed. ``storage``: a compressed Zarr."""
    memmap = folder / "rows.npy"
    found: Peers = {
        "torch, a sample a call, .npy": torch_loader(Rows(memmap), 0),
        f"torch, a sample a call, .npy, {WORKERS} workers": torch_loader(Rows(memmap), WORKERS),
        "torch, a sample a call, Zarr": torch_loader(Rows(storage), 0),
        "torch, batched reads, .npy": torch_loader(RowsAtOnce(memmap), 0),
        f"torch, batched reads, .npy, {WORKERS} workers": torch_loader(RowsAtOnce(memmap), WORKERS),
    }
    found |= optional("scdataset", scdataset, folder, storage)
    found |= optional("litdata", litdata, folder, storage)
    found |= optional("grain", grain, folder, storage)
    return found


def optional(
    module: str, build: Callable[[Path, Path], dict[str, Batches]], folder: Path, storage: Path
) -> dict[str, Any]:
    return build(folder, storage) if find_spec(module) else {module: None}


def stacked(batch: Any) -> torch.Tensor:
    return batch if isinstance(batch, torch.Tensor) else torch.stack(batch)


def torch_loader(dataset: Dataset, workers: int) -> Batches:
    return lambda: endless(
        DataLoader(
            dataset, BATCH, shuffle=True, drop_last=True, num_workers=workers, collate_fn=stacked,
            persistent_workers=workers > 0, multiprocessing_context="spawn" if workers else None,
        )
    )  # fmt: skip


# -- scDataset: blocks of a memmap or a Zarr array, shuffled in a buffer


def scdataset(folder: Path, storage: Path) -> dict[str, Batches]:
    cases: dict[str, Batches] = {}
    for block in (64, 1024):  # a storage chunk has 1,024 rows
        cases[f"scDataset, blocks of {block}, .npy"] = scdataset_over(folder / "rows.npy", block)
    cases["scDataset, blocks of 1024, Zarr"] = scdataset_over(storage, 1024)
    cases[f"scDataset, blocks of 1024, Zarr, {WORKERS} workers"] = scdataset_over(
        storage, 1024, WORKERS
    )
    return cases


def fetch_runs(array: Any, rows: np.ndarray) -> np.ndarray:
    """Sorted rows, a run at a time: far faster than a fancy index of zarr-python."""
    if isinstance(array, np.ndarray):
        return array[rows]
    out = np.empty((len(rows), array.shape[1]), np.float32)
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        out[first:last] = array[int(rows[first]) : int(rows[last - 1]) + 1]
    return out


def scdataset_over(path: Path, block: int, workers: int = 0) -> Batches:
    from scdataset import BlockShuffling, scDataset

    def batches() -> Iterator[torch.Tensor]:
        dataset = scDataset(
            opened(path), BlockShuffling(block), BATCH, fetch_factor=64, drop_last=True, seed=0,
            fetch_callback=fetch_runs, batch_transform=torch.from_numpy,
        )  # fmt: skip
        return endless(
            DataLoader(
                dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0,
                multiprocessing_context="spawn" if workers else None,
            )
        )  # fmt: skip

    return batches


# -- LitData: its own chunks


def _rows_of(first_and_path: tuple[int, str]) -> Iterator[torch.Tensor]:
    first, path = first_and_path
    for row in np.load(path, mmap_mode="r")[first : first + 1024]:
        yield torch.from_numpy(np.array(row))


def litdata(folder: Path, storage: Path) -> dict[str, Batches]:
    import litdata as ld

    target = folder / "litdata"
    if not target.exists():
        path = str(folder / "rows.npy")
        inputs = [(first, path) for first in range(0, len(opened(folder / "rows.npy")), 1024)]
        ld.optimize(_rows_of, inputs, str(target), chunk_bytes="64MB", num_workers=1, verbose=False)

    def batches(workers: int) -> Iterator[torch.Tensor]:
        dataset = ld.StreamingDataset(str(target), shuffle=True, drop_last=True)
        return endless(ld.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers))

    return {
        "LitData": lambda: batches(0),
        f"LitData, {WORKERS} workers": lambda: batches(WORKERS),
    }


# -- Grain: ArrayRecord, and the memmap


def grain(folder: Path, storage: Path) -> dict[str, Batches]:
    import grain as gr
    from array_record.python.array_record_module import ArrayRecordWriter

    target = folder / "rows.array_record"
    if not target.exists():
        writer = ArrayRecordWriter(str(target), "group_size:1,uncompressed")
        for row in opened(folder / "rows.npy"):
            writer.write(row.tobytes())
        writer.close()

    def batches(source: Any, decode: Callable[[Any], Any], threads: int) -> Iterator[torch.Tensor]:
        warnings.filterwarnings("ignore", module="grain")
        rows = gr.MapDataset.source(source).shuffle(seed=0).repeat().map(decode)
        read = gr.ReadOptions(num_threads=threads, prefetch_buffer_size=512)
        batched = rows.to_iter_dataset(read).batch(BATCH, drop_remainder=True)
        return (torch.from_numpy(batch) for batch in batched)

    def records() -> Iterator[torch.Tensor]:
        source = gr.sources.ArrayRecordDataSource(str(target))
        return batches(source, lambda record: np.frombuffer(record, np.float32), 16)

    return {
        "Grain, ArrayRecord": records,
        "Grain, .npy": lambda: batches(opened(folder / "rows.npy"), np.array, WORKERS),
    }
