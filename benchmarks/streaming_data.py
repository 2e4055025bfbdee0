"""The dataset that streaming is measured on, in every layout, and how fast each can be at all.

The ceiling of a layout is found without Penstock: every chunk is read and decompressed by all cores
into a reused buffer, in random order, and nothing else is done with it. For what is stored raw it
is a plain copy from the mapped file into two reused windows, the memory that reading one while the
other is used takes: a smaller target stays in the processor's cache, and measures that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import blosc, zstd
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

try:
    import deflate
except ImportError:
    deflate = None

CHUNK_ROWS = 1024
SHARD_CHUNKS = 16
WINDOW_BLOCKS = 16
CORES = len(os.sched_getaffinity(0))

blosc.use_threads = False  # as in any program with threads of its own


def _blosc(name: str) -> BloscCodec:
    return BloscCodec(cname=name, clevel=5, shuffle="bitshuffle", typesize=4)


@dataclass(frozen=True)
class Layout:
    """One way to store the rows; ``share`` of its ceiling is what a stream should reach."""

    name: str
    codec: Any
    share: float
    sharded: bool = False

    def path(self, folder: Path) -> Path:
        return folder / ("rows.npy" if self.name == "npy" else f"{self.name}.zarr")


LAYOUTS = (
    Layout("npy", None, 0.8),
    Layout("raw", None, 0.8),
    Layout("blosc-lz4", _blosc("lz4"), 0.65),
    Layout("blosc-zstd", _blosc("zstd"), 0.8),
    Layout("zstd", ZstdCodec(level=1), 0.8),
    Layout("gzip", GzipCodec(level=1), 0.8),
    Layout("sharded-blosc-lz4", _blosc("lz4"), 0.65, sharded=True),
    Layout("sharded-blosc-zstd", _blosc("zstd"), 0.8, sharded=True),
)


def write_layouts(folder: Path, layouts: list[Layout], *, rows: int, columns: int) -> None:
    """Write what is not there yet; the .npy file always, for it is the data itself."""
    source = folder / "rows.npy"
    if not source.exists():
        stored = np.lib.format.open_memmap(source, "w+", np.float32, (rows, columns))
        for first in range(0, rows, CHUNK_ROWS):
            stored[first : first + CHUNK_ROWS] = noise(
                first, min(CHUNK_ROWS, rows - first), columns
            )
        stored.flush()
    data = np.load(source, mmap_mode="r")
    for layout in layouts:
        path = layout.path(folder)
        if layout.name != "npy" and not path.exists():
            array = zarr.create_array(
                path, shape=data.shape, dtype="f4", chunks=(CHUNK_ROWS, columns),
                shards=(SHARD_CHUNKS * CHUNK_ROWS, columns) if layout.sharded else None,
                compressors=layout.codec,
            )  # fmt: skip
            step = SHARD_CHUNKS * CHUNK_ROWS
            for first in range(0, rows, step):
                array[first : first + step] = data[first : first + step]


def noise(key: int, rows: int, columns: int) -> np.ndarray:
    """Noise in steps of 1/32: compresses about as recordings do."""
    values = np.random.default_rng(key).standard_normal((rows, columns), np.float32)
    return np.round(values * 32) / 32


def files_of(path: Path) -> Iterator[Path]:
    """All files of a stored dataset."""
    yield from [path] if path.is_file() else (p for p in path.rglob("*") if p.is_file())


def drop_cache(path: Path) -> None:
    """Make the next read of these files a read of the disk."""
    for file in files_of(path):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)  # what is not written yet cannot be dropped
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


# -- the ceiling


def ceiling(layout: Layout, folder: Path) -> Callable[[float], float]:
    """``run(seconds)`` reads and decodes chunks at random for that long: seconds a gigabyte."""
    return _by_all_cores(layout, folder, _copies if layout.codec is None else _decodes)


def _by_all_cores(layout: Layout, folder: Path, work: Callable) -> Callable[[float], float]:
    shape = np.load(folder / "rows.npy", mmap_mode="r").shape
    nbytes, count = CHUNK_ROWS * shape[1] * 4, shape[0] // CHUNK_ROWS
    thread_work = work(layout, folder, count, nbytes)

    def run(seconds: float) -> float:
        done = [0] * CORES
        end = time.perf_counter() + seconds

        def one(number: int) -> None:
            take, rng = thread_work(number), np.random.default_rng(number)
            while time.perf_counter() < end or not done[number]:
                for chunk in rng.integers(count, size=8).tolist():
                    take(chunk)
                    done[number] += nbytes

        begin = time.perf_counter()
        threads = [threading.Thread(target=one, args=(i,)) for i in range(CORES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (time.perf_counter() - begin) / sum(done) * 1e9

    return run


def _copies(layout: Layout, folder: Path, count: int, nbytes: int) -> Callable[[int], Any]:
    """Copy mapped chunks to the places of two reused windows, each thread to its own part."""
    flat = _mapped(layout, folder, count)
    windows = np.zeros((2 * WINDOW_BLOCKS, nbytes), np.uint8)

    def thread_work(number: int) -> Callable[[int], None]:
        mine = range(number, len(windows), CORES)
        return lambda i: np.copyto(windows[mine[i % len(mine)]], flat[i])

    return thread_work


def _mapped(layout: Layout, folder: Path, count: int) -> list[np.ndarray]:
    """The bytes of each raw chunk, as they are in the page cache."""
    if layout.name == "npy":
        rows = np.load(folder / "rows.npy", mmap_mode="r").reshape(-1).view(np.uint8)
        return list(rows[: len(rows) // count * count].reshape(count, -1))
    return [np.memmap(place[0], np.uint8, "r") for place in _places(layout, folder, count)]


def _decodes(layout: Layout, folder: Path, count: int, nbytes: int) -> Callable[[int], Any]:
    """Read a chunk's bytes into a reused buffer and decompress them into another."""
    places = _places(layout, folder, count)
    handles = {path: os.open(path, os.O_RDONLY) for path in {place[0] for place in places}}
    decode = _decoder(layout)

    def thread_work(number: int) -> Callable[[int], None]:
        stored, into = np.zeros(2 * nbytes, np.uint8), np.zeros(nbytes, np.uint8)

        def take(i: int) -> None:
            path, offset, size = places[i]
            assert os.preadv(handles[path], [stored[:size]], offset) == size
            decode(stored[:size], into)

        return take

    return thread_work


def _decoder(layout: Layout) -> Callable[[np.ndarray, np.ndarray], Any]:
    if isinstance(layout.codec, BloscCodec):
        return blosc.decompress
    if isinstance(layout.codec, ZstdCodec):
        return zstd.decompress
    if deflate is None:
        import zlib

        return lambda stored, into: zlib.decompress(stored, 31, into.size)
    return lambda stored, into: deflate.gzip_decompress(stored, into.size)


def _places(layout: Layout, folder: Path, count: int) -> list[tuple[Path, int, int]]:
    """File, offset and size of each chunk."""
    path = layout.path(folder)
    if not layout.sharded:
        files = [path / "c" / str(i) / "0" for i in range(count)]
        return [(file, 0, file.stat().st_size) for file in files]
    places = []
    for shard in range(-(-count // SHARD_CHUNKS)):
        file = path / "c" / str(shard) / "0"
        index = np.frombuffer(file.read_bytes()[-SHARD_CHUNKS * 16 - 4 : -4], "<u8").reshape(-1, 2)
        places += [(file, int(offset), int(size)) for offset, size in index]
    return places[:count]
