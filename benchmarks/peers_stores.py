"""Loaders of other projects that need a newer Python, in an environment of their own.

`Peers` makes the environment once, in the user's cache, with the Python 3.12 of the search path,
and keeps one process of it. A case is one JSON line to that process; the answer is the seconds of a
sample. What cannot be made is said, and the claims that need it count as failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PYTHON = "python3.12"
PACKAGES = (
    "annbatch==0.3.1", "scdataset==0.3.0", "xbatcher==0.4.0", "torch==2.13.0", "numpy==2.4.6",
    "zarr==3.1.6", "zarrs==0.2.3", "anndata==0.13.4", "scipy==1.18.1", "xarray==2026.9.0",
)  # fmt: skip


class Peers:
    """The other environment and its process; ``missing`` says why there is none.

    Args:
        tiny: A smoke test: do not make the environment.
    """

    def __init__(self, tiny: bool) -> None:
        self.missing, self._tiny, self._process = "a tiny run", tiny, None

    def __enter__(self) -> Peers:
        if not self._tiny:
            try:
                command = [environment() / "bin" / "python", __file__]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
                )  # fmt: skip
                self.missing = ""
            except (OSError, subprocess.CalledProcessError) as error:
                self.missing = f"no environment with {PYTHON}: {type(error).__name__}"
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.communicate()

    def run(self, **case: Any) -> tuple[float, float]:
        """Seconds of a sample, and CPU seconds."""
        assert self._process and self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(case, default=str) + "\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        return found["seconds"], found["cpu"]


def environment() -> Path:
    """Return the folder of the environment, which is made if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "penstock" / "peers"
    made = folder / "made.json"
    if not made.exists() or json.loads(made.read_text()) != list(PACKAGES):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([PYTHON, "-m", "venv", folder], check=True, capture_output=True)
        install = [folder / "bin" / "python", "-m", "pip", "install", "-q", *PACKAGES]
        subprocess.run(install, check=True, capture_output=True)
        made.write_text(json.dumps(PACKAGES))
    return folder


# -- what runs there


def seconds_per_sample(batches: Iterator[Any], batch: int) -> float:
    begin, samples = time.perf_counter(), 0
    for _ in batches:
        samples += batch
    return (time.perf_counter() - begin) / samples


def xbatcher(path: str, lead: int, batch: int) -> float:
    """Pairs in random order, each a batch of xbatcher of which two states are read."""
    import torch
    import xarray
    from xbatcher import BatchGenerator

    def batches() -> Iterator[Any]:
        data = xarray.open_zarr(path, chunks=None, consolidated=False)
        steps = {"time": lead + 1}
        pairs = BatchGenerator(data, steps, {"time": lead}, preload_batch=False)
        order = np.random.default_rng(0).permutation(len(pairs))[: 8 * batch]
        for first in range(0, len(order) - batch + 1, batch):
            some = [pairs[int(i)]["t"][[0, lead]].values for i in order[first : first + batch]]
            yield torch.from_numpy(np.stack(some))

    return seconds_per_sample(batches(), batch)


def annbatch(path: str, batch: int, block: int, blocks: int, epochs: int, dense: bool) -> float:
    import anndata
    import zarr
    from annbatch import Loader

    def batches() -> Iterator[Any]:
        group = zarr.open_group(path, mode="r")
        data = anndata.AnnData(X=anndata.io.sparse_dataset(group["X"]))
        loader = Loader(
            chunk_size=block, preload_nchunks=blocks, batch_size=batch, shuffle=True,
            drop_last=True, to="torch",
        ).add_adata(data)  # fmt: skip
        for _ in range(epochs):
            for each in loader:
                yield each["X"].to_dense() if dense else each["X"]

    return seconds_per_sample(batches(), batch)


def scdataset(path: str, batch: int, block: int, blocks: int, epochs: int, dense: bool) -> float:
    import anndata
    import torch
    import zarr
    from scdataset import BlockShuffling, scDataset

    def tensor(rows: Any) -> Any:
        if dense:
            return torch.from_numpy(rows.toarray())
        parts = (torch.from_numpy(each) for each in (rows.indptr, rows.indices, rows.data))
        return torch.sparse_csr_tensor(*parts, size=rows.shape, check_invariants=False)

    stored = anndata.io.sparse_dataset(zarr.open_group(path, mode="r")["X"])
    data = scDataset(
        Cells(stored), BlockShuffling(block), batch, fetch_factor=block * blocks // batch,
        drop_last=True, seed=0, batch_transform=tensor,
    )  # fmt: skip
    return seconds_per_sample((each for _ in range(epochs) for each in data), batch)


class Cells:
    """A stored matrix with a length, which scDataset asks for."""

    def __init__(self, stored: Any) -> None:
        self.stored = stored

    def __len__(self) -> int:
        return int(self.stored.shape[0])

    def __getitem__(self, rows: Any) -> Any:
        return self.stored[rows]


CASES: dict[str, Callable[..., float]] = {
    "xbatcher": xbatcher, "annbatch": annbatch, "scdataset": scdataset,
}  # fmt: skip


def answer() -> None:
    """Run the cases that are asked for, one a line."""
    import warnings

    import zarr

    warnings.simplefilter("ignore")
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        case = json.loads(line)
        begin, busy = time.perf_counter(), time.process_time()
        seconds = CASES[case.pop("case")](**case)
        share = (time.process_time() - busy) / (time.perf_counter() - begin)
        answers.write(json.dumps({"seconds": seconds, "cpu": share * seconds}) + "\n")
        answers.flush()


if __name__ == "__main__":
    answer()
