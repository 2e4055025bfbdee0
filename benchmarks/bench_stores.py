"""How fast are samples of any shape, from any store, and how much memory do they take?

Weather pairs, patches of images, rows of a sparse matrix, windows, labels, tokens, packed values:
each against what people use for it, in the same run. A case reads whole epochs from the opening of
the store on, shuffled; seconds are of one sample. There are enough epochs that the two windows that
a stream reads ahead, also of an epoch that nobody asks for, are a small part of them. Peers that
need another Python run in an environment that this makes (`peers_stores`).

    python benchmarks/bench_stores.py [--tiny] [--rounds 5] [--only weather,patches]
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import zarr
from measure import (
    arguments,
    claim,
    claim_not_made,
    emit,
    in_new_process,
    interleaved,
    ratio,
    report,
    run,
)
from numcodecs import zstd
from peers_stores import Peers
from zarr.codecs import ZstdCodec

from penstock import StreamLoader, open_source

CORES = len(os.sched_getaffinity(0))
Case = Callable[[], float | tuple[float, float]]


def read(source: Any, batch: int, epochs: int = 1, convert: Any = None, **options: Any) -> float:
    """Seconds of a sample: whole epochs, with the opening of the loader."""
    begin, samples = time.perf_counter(), 0
    with StreamLoader(source, batch, **options) as loader:
        for _ in range(epochs):
            for each in loader:
                samples += batch
                if convert is not None:
                    convert(each)
    return (time.perf_counter() - begin) / samples


def compare(cases: dict[str, Case], rounds: int, unit: str) -> dict[str, list[float]]:
    """Measure all cases and report how many samples a second each delivers."""
    cpu: dict[str, list[float]] = {name: [] for name in cases}
    timed = {name: partial(with_cpu, case, cpu[name]) for name, case in cases.items()}
    seconds = interleaved(timed, rounds=rounds)
    report(seconds, per=unit)
    for name, taken in seconds.items():
        found = {f"{unit}_per_second": 1 / float(np.median(taken))}
        emit(case=name, **found, cpu_us=float(np.median(cpu[name])) * 1e6)
    return seconds


def with_cpu(case: Case, cpu: list[float]) -> float:
    """Seconds of a sample; ``cpu`` gets CPU seconds of one: a busy machine changes them less."""
    begin, busy = time.perf_counter(), time.process_time()
    found = case()
    if isinstance(found, tuple):  # of another process
        cpu.append(found[1])
        return found[0]
    cpu.append((time.process_time() - busy) / (time.perf_counter() - begin) * found)
    return found


def peer_cases(peers: Peers, cases: dict[str, dict[str, Any]]) -> dict[str, Case]:
    """Cases of the other environment, or none if it could not be made."""
    if peers.missing:
        emit(peers="not measured", why=peers.missing)
        return {}
    return {name: partial(peers.run, **arguments) for name, arguments in cases.items()}


def against(
    text: str, seconds: dict[str, list[float]], ours: str, other: str, *, at_least: float, why: str
) -> None:
    """Claim how many times faster ours is; say so if the other was not measured."""
    if other in seconds:
        claim(text, ratio(seconds, ours, other), at_least=at_least)
    else:
        claim_not_made(text, why)


def smooth(key: int, shape: tuple[int, ...], step: float) -> np.ndarray:
    """Noise that compresses about as fields of a model or a camera do."""
    values = np.random.default_rng(key).standard_normal(shape, np.float32)
    return np.round(values / step) * step


# -- weather: pairs of states, at a lead time


def weather(folder: Path, peers: Peers, rounds: int, tiny: bool) -> None:
    times, shape, chunk, lead = (96, (2, 4, 8), 24, 6) if tiny else (1536, (4, 64, 128), 24, 6)
    path = folder / "weather.zarr"
    group = zarr.create_group(path)
    array = group.create_array(
        "t", shape=(times, *shape), chunks=(chunk, *shape), dtype="f4", compressors=ZstdCodec(),
        dimension_names=("time", "level", "latitude", "longitude"),
    )  # fmt: skip
    for first in range(0, times, chunk):
        array[first : first + chunk] = smooth(first, (chunk, *shape), 1 / 32)
    pairs = open_source(path, along="time").windows(offsets={"x": ("t", [0]), "y": ("t", [lead])})
    emit(case="weather", mb=array.nbytes / 1e6, chunk_mb=array.nbytes / 1e6 * chunk / times)
    batch = 16
    options = {"batch": batch, "epochs": 1 if tiny else 10, "memory_budget": "256MB"}
    # by default a block is one chunk, and 6 of 24 rows are decoded for two blocks; here 6 of 72
    options["block_samples"] = 3 * chunk
    files = [path / "t" / "c" / str(i) / "0" / "0" / "0" for i in range(times // chunk)]
    cases: dict[str, Case] = {
        "weather, penstock": partial(read, pairs, **options),
        "weather, decoding alone": partial(
            decode, files, array.nbytes * chunk // times, times - lead, options["epochs"]
        ),
    } | peer_cases(
        peers,
        {"weather, xbatcher": {"case": "xbatcher", "path": path, "lead": lead, "batch": batch}},
    )
    seconds = compare(cases, rounds, "pairs")
    share = ratio(seconds, "weather, penstock", "weather, decoding alone")
    claim("weather pairs: share of the speed of decoding alone", share, at_least=0.6)
    against(
        "weather pairs: times faster than xbatcher", seconds, "weather, penstock",
        "weather, xbatcher", at_least=10, why=peers.missing,
    )  # fmt: skip


def decode(files: list[Path], nbytes: int, samples: int, epochs: int) -> float:
    """Seconds of a sample if every chunk is decoded once an epoch by all cores, and that is all."""
    left = [file for _ in range(epochs) for file in np.random.default_rng(0).permutation(files)]
    seconds = on_all_cores(left, lambda: np.zeros(nbytes, np.uint8), zstd.decompress)
    return seconds / samples / epochs


def on_all_cores(
    left: list[Path], memory: Callable[[], np.ndarray], work: Callable[[bytes, np.ndarray], Any]
) -> float:
    """Seconds until all cores have worked on the bytes of each file, with memory of each core."""
    begin = time.perf_counter()

    def each() -> None:
        into = memory()
        while left:
            try:
                file = left.pop()
            except IndexError:
                return
            work(file.read_bytes(), into)

    threads = [threading.Thread(target=each) for _ in range(CORES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


# -- microscopy: patches of a 5-D array


def patches(folder: Path, peers: Peers, rounds: int, tiny: bool) -> None:
    shape, chunk, size = ((2, 2, 2, 64, 64), 32, 16) if tiny else ((8, 2, 8, 1024, 1024), 512, 256)
    path = folder / "images.zarr"
    array = images(path, shape, (1, 1, 1, chunk, chunk))
    emit(case="patches", mb=array.nbytes / 1e6, patch_kb=size * size * 2 / 1e3)
    sizes = {"c": 1, "z": 1, "y": size, "x": size}
    options = {"batch": 32 if not tiny else 4, "epochs": 1 if tiny else 10}
    options["window_blocks"] = 16  # of 4 chunks: four times as many as the loader by hand mixes
    files = [file for file in sorted(path.glob("c/**/*")) if file.is_file()]
    nbytes, samples = chunk * chunk * 2, array.size // size**2
    cases: dict[str, Case] = {
        "patches, penstock": partial(read, open_source(path).patches(sizes), **options),
        "random patches, penstock": partial(
            read, open_source(path).patches(sizes, random=True), **options
        ),
        "patches, tensorstore, windows of chunks": partial(
            tensorstore_windows, path, size, options["batch"], options["epochs"]
        ),
        "patches, zarr-python, a patch a call": partial(
            zarr_patches, path, size, 8 if tiny else 200
        ),
        "patches, decoding alone": partial(decode, files, nbytes, samples, options["epochs"]),
    }
    seconds = compare(cases, rounds, "patches")
    ours, by_sample = "patches, penstock", "patches, zarr-python, a patch a call"
    found = ratio(seconds, ours, "patches, tensorstore, windows of chunks")
    claim("patches: times faster than tensorstore by hand", found, at_least=1.0)
    for name in (ours, "patches, decoding alone"):  # nobody can be faster than the second one
        emit(case=f"{name}: times faster than by sample", found=ratio(seconds, name, by_sample))
    found = ratio(seconds, ours, "patches, decoding alone")
    emit(case="patches: share of the speed of decoding alone", found=found)
    stacks(folder, rounds, tiny)


def stacks(folder: Path, rounds: int, tiny: bool) -> None:
    """Planes of images in chunks of many planes: a patch needs a slice of several chunks."""
    shape, chunk, size = ((1, 1, 8, 64, 64), 16, 32) if tiny else ((2, 2, 32, 1024, 1024), 64, 256)
    path, planes = folder / "stacks.zarr", shape[2]
    array = images(path, shape, (1, 1, planes, chunk, chunk))
    source = open_source(path).patches({"c": 1, "z": 1, "y": size, "x": size})
    files = [file for file in sorted(path.glob("c/**/*")) if file.is_file()]
    epochs, nbytes = 1 if tiny else 10, planes * chunk * chunk * 2
    options = {"batch": 32 if not tiny else 4, "epochs": epochs, "window_blocks": 8}
    cases: dict[str, Case] = {
        "stacks, penstock": partial(read, source, **options),
        "stacks, zarr-python, a patch a call": partial(zarr_patches, path, size, 8 if tiny else 50),
        "stacks, decoding alone": partial(decode, files, nbytes, array.size // size**2, epochs),
    }
    seconds = compare(cases, rounds, "patches")
    found = ratio(seconds, "stacks, penstock", "stacks, zarr-python, a patch a call")
    claim("patches of stacks: times faster than zarr-python by sample", found, at_least=20)


def images(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]) -> zarr.Array:
    array = zarr.create_array(
        path, shape=shape, chunks=chunks, dtype="u2", compressors=ZstdCodec(),
        dimension_names=("t", "c", "z", "y", "x"),
    )  # fmt: skip
    for t in range(shape[0]):
        array[t] = (1000 + smooth(t, shape[1:], 1 / 8) * 64).astype("u2")
    return array


def corners(shape: tuple[int, ...], steps: tuple[int, ...], seed: int) -> np.ndarray:
    """Where tiles begin, in random order."""
    grid = np.indices([n // step for n, step in zip(shape, steps, strict=True)])
    found = grid.reshape(len(shape), -1).T * np.array(steps)
    return np.random.default_rng(seed).permutation(found)


def tensorstore_of(path: Path, cache: int = 0) -> Any:
    import tensorstore as ts

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return ts.open(spec, context=ts.Context({"cache_pool": {"total_bytes_limit": cache}})).result()


def tensorstore_windows(path: Path, size: int, batch: int, epochs: int) -> float:
    """By hand, tuned: read 16 whole chunks at once, the next 16 meanwhile, and shuffle patches."""
    begin, samples = time.perf_counter(), 0
    store = tensorstore_of(path)
    chunks, rng = store.chunk_layout.read_chunk.shape, np.random.default_rng(0)
    each = chunks[-1] // size
    for epoch in range(epochs):
        places = corners(store.shape, chunks, epoch)
        windows = [places[i : i + 16] for i in range(0, len(places), 16)]

        def start(window: np.ndarray) -> list[Any]:
            ends = window + np.array(chunks)
            boxes = [tuple(map(slice, a, b)) for a, b in zip(window, ends, strict=True)]
            return [store[box].read() for box in boxes]

        coming = start(windows[0])
        for number in range(len(windows)):
            ready, coming = coming, start(windows[number + 1]) if number + 1 < len(windows) else []
            rows = np.concatenate([one.result().reshape(-1, *chunks[-2:]) for one in ready])
            rows = rows.reshape(len(rows), each, size, each, size).swapaxes(2, 3)
            rows = rows.reshape(-1, size, size) if each == 1 else rows
            order = rng.permutation(len(ready) * each * each)
            for first in range(0, len(order) - batch + 1, batch):
                some = order[first : first + batch]
                where = some // each**2, some // each % each, some % each
                torch.from_numpy(rows[where] if each > 1 else rows[some])
                samples += batch
    return (time.perf_counter() - begin) / samples


def zarr_patches(path: Path, size: int, count: int) -> float:
    begin = time.perf_counter()
    array = zarr.open_array(path, mode="r")
    for t, c, z, y, x in corners(array.shape, (1, 1, 1, size, size), 0)[:count].tolist():
        torch.from_numpy(np.asarray(array[t, c, z, y : y + size, x : x + size]))
    return (time.perf_counter() - begin) / count


# -- single cell: rows of a sparse matrix


def cells(folder: Path, peers: Peers, rounds: int, tiny: bool) -> None:
    rows, genes = (2_000, 100) if tiny else (100_000, 2_000)
    path, rng = folder / "cells.zarr", np.random.default_rng(0)
    offsets = np.append(0, np.cumsum(rng.binomial(genes, 0.095, rows)))
    columns, values = np.empty(offsets[-1], np.int32), rng.poisson(2, offsets[-1]).astype("f4") + 1
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        columns[first:last] = np.sort(rng.choice(genes, last - first, replace=False, shuffle=False))
    chunk = 1_000 if tiny else 12_104  # what annbatch writes
    group = zarr.create_group(path, attributes={"encoding-type": "anndata"})
    kind = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [rows, genes]}
    stored = group.create_group("X", attributes=kind)
    stored.create_array("indptr", data=offsets)
    for part, items in (("data", values), ("indices", columns)):
        stored.create_array(part, data=items, chunks=(chunk,), shards=(chunk * 200,))
    emit(case="cells", rows=rows, genes=genes, density=len(values) / rows / genes)
    batch, block = (64, 64) if tiny else (1024, 512)
    epochs = 1 if tiny else 6
    options = {"batch": batch, "epochs": epochs, "block_samples": block, "window_blocks": 32}
    # in a process without the threads and memory of other cases, as the peers are
    own = None if tiny else ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def ours(dense: bool) -> float | tuple[float, float]:
        if own is None:
            return read_cells(path, dense, options)
        return own.submit(read_cells, path, dense, options).result()

    cases: dict[str, Case] = {
        "cells, penstock, sparse": partial(ours, False),
        "cells, penstock, dense": partial(ours, True),
    }
    shape = {"path": path, "batch": batch, "block": block, "blocks": 32, "epochs": epochs}
    cases |= peer_cases(
        peers,
        {
            "cells, annbatch, sparse": {"case": "annbatch", "dense": False, **shape},
            "cells, annbatch, dense": {"case": "annbatch", "dense": True, **shape},
            "cells, scDataset, sparse": {"case": "scdataset", "dense": False, **shape},
            "cells, scDataset, dense": {"case": "scdataset", "dense": True, **shape},
        },
    )
    with own or nullcontext():
        seconds = compare(cases, rounds, "cells")
    for peer in ("annbatch", "scDataset"):
        for kind, bound in (("sparse", 1.0), ("dense", 2.0)):
            against(
                f"cells, {kind}: times faster than {peer}", seconds, f"cells, penstock, {kind}",
                f"cells, {peer}, {kind}", at_least=bound, why=peers.missing,
            )  # fmt: skip


def read_cells(path: Path, dense: bool, options: dict[str, Any]) -> tuple[float, float]:
    """Seconds of a cell, and those of the processor."""
    cpu: list[float] = []
    source = open_source(path, fields=["X"], dense=dense)
    return with_cpu(partial(read, source, **options), cpu), cpu[0]


# -- memory: windows of 25 rows, and labels beside rows


def memory(folder: Path, peers: Peers, rounds: int, tiny: bool) -> None:
    rows, columns = (240, 200) if tiny else (960, 20_000)
    path, budget = folder / "rollouts.zarr", 10**9
    zarr.create_array(path, data=smooth(0, (rows, columns), 1 / 32), chunks=(24, columns))
    found = in_new_process(
        grown, str(path), {"steps": 25, "batch_size": 32, "memory_budget": "1GB"}
    )
    emit(case="windows of 25 rows of 80 KB in 1 GB", **found)
    claim(
        "windows of 25 rows: blocks that are mixed",
        found["window_blocks"],
        at_least=2 if tiny else 20,
    )
    claim("windows of 25 rows: bytes of all buffers", found["buffer_bytes"], at_most=budget)
    if not tiny:
        claim("windows of 25 rows: bytes that the process grew by", found["grown"], at_most=budget)

    rows, columns = (2048, 100) if tiny else (40_000, 2_000)
    x, y = folder / "x.zarr", folder / "y.zarr"
    zarr.create_array(x, data=smooth(0, (rows, columns), 1 / 32), chunks=(512, columns))
    zarr.create_array(y, data=np.arange(rows), chunks=(rows,))
    settings = {"batch_size": 256, "memory_budget": "256MB"}
    kinds = {"rows": str(x), "rows and labels": {"x": str(x), "y": str(y)}}
    seen: dict[str, list[dict[str, int]]] = {name: [] for name in kinds}
    for _ in range(1 if tiny else 3):
        for name, source in kinds.items():
            seen[name].append(in_new_process(grown, source, settings))
    middle = {
        key: {name: float(np.median([one[key] for one in each])) for name, each in seen.items()}
        for key in ("buffer_bytes", "grown")
    }
    emit(case="labels beside rows", **middle)
    for key, what in (("buffer_bytes", "buffers"), ("grown", "growth of the process")):
        if key == "buffer_bytes" or not tiny:
            found = middle[key]["rows and labels"] / middle[key]["rows"]
            claim(f"labels beside rows: {what}, times that of rows alone", found, at_most=1.05)


def grown(source: Any, settings: dict[str, Any]) -> dict[str, int]:
    """Bytes that the process grew by in two epochs, and what the loader says."""
    with StreamLoader(np.zeros((64, 2), "f4"), 8) as loader:  # imports, threads
        list(loader)
    Path("/proc/self/clear_refs").write_text("5")  # the most memory so far counts from here
    begin = resident("VmHWM")
    with StreamLoader(source, **settings) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        return {
            "grown": resident("VmHWM") - begin,
            "buffer_bytes": loader.buffer_bytes,
            "window_blocks": loader.window_blocks,
            "block_samples": loader.block_samples,
        }


def resident(name: str) -> int:
    """Bytes of this process in memory, by a line of its status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


# -- tokens


def tokens(folder: Path, peers: Peers, rounds: int, tiny: bool) -> None:
    count, length, batch = (40_000, 16, 4) if tiny else (64 << 20, 1024, 32)
    path = folder / "train.bin"
    np.random.default_rng(0).integers(0, 50_257, count, np.uint16).tofile(path)
    steps = 4 if tiny else count // length // batch
    emit(case="tokens", tokens=count, length=length, batch=batch)
    cases: dict[str, Case] = {
        "tokens, penstock": lambda: read(
            open_source(path, dtype="uint16").windows(length + 1, stride=length),
            batch, epochs=1 if tiny else 4, convert=inputs_and_targets, memory_budget="256MB",
        ),
        "tokens, nanoGPT's loader": partial(nanogpt, path, length, batch, steps),
    }  # fmt: skip
    seconds = compare(cases, rounds, "sequences")
    found = ratio(seconds, "tokens, penstock", "tokens, nanoGPT's loader")
    claim("tokens: times faster than a loader by hand", found, at_least=1.0)


def inputs_and_targets(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # by numpy, as the loader by hand does it: torch converts uint16 several times slower
    found = torch.from_numpy(batch.numpy().astype(np.int64))
    return found[:, :-1], found[:, 1:]


def nanogpt(path: Path, length: int, batch: int, steps: int) -> float:
    """As in nanoGPT's train.py: random offsets, a new memmap for each batch."""
    begin = time.perf_counter()
    for _ in range(steps):
        data = np.memmap(path, np.uint16, "r")
        starts = torch.randint(len(data) - length, (batch,)).tolist()
        for shift in (0, 1):
            rows = [data[i + shift : i + shift + length].astype(np.int64) for i in starts]
            torch.stack([torch.from_numpy(row) for row in rows])
    return (time.perf_counter() - begin) / steps / batch


# -- packed: integers that are decoded to numbers, as CF has it


def packed(folder: Path, peers: Peers, rounds: int, tiny: bool) -> None:
    rows, columns, chunk = (256, 64, 32) if tiny else (16_384, 8_192, 256)
    path = folder / "packed.zarr"
    array = zarr.create_array(
        path, shape=(rows, columns), chunks=(chunk, columns), dtype="i2", compressors=ZstdCodec()
    )
    for first in range(0, rows, chunk):
        array[first : first + chunk] = smooth(first, (chunk, columns), 1 / 8) * 64
    array.attrs.update(scale_factor=0.01, add_offset=280.0, _FillValue=-32767)
    files = [path / "c" / str(i) / "0" for i in range(rows // chunk)]
    epochs = 1 if tiny else 6
    options = {"batch": 32, "epochs": epochs, "memory_budget": "512MB"}
    cases: dict[str, Case] = {
        "packed, decoded": partial(read, open_source(path), **options),
        "packed, stored values": partial(read, open_source(path, decode=False), **options),
        "packed, by numpy": partial(unpack, files, (chunk, columns), rows, epochs),
    }
    seconds = compare(cases, rounds, "rows")
    found = ratio(seconds, "packed, decoded", "packed, stored values")
    emit(case="packed: speed of decoded rows, times that of stored ones", found=found)
    found = ratio(seconds, "packed, decoded", "packed, by numpy")
    claim(
        "packed: times as fast as decoding by numpy on all cores, unshuffled", found, at_least=1.0
    )


def unpack(files: list[Path], shape: tuple[int, int], rows: int, epochs: int) -> float:
    """Seconds of a row: chunks are decompressed and decoded as xarray does it, by all cores."""

    def work(stored: bytes, into: np.ndarray) -> None:
        zstd.decompress(stored, into)
        values = into.astype(np.float64)
        values = np.where(into == -32767, np.nan, values)
        values *= 0.01
        values += 280.0

    return on_all_cores(files * epochs, lambda: np.zeros(shape, np.int16), work) / rows / epochs


PARTS = {
    "weather": weather, "patches": patches, "cells": cells, "memory": memory, "tokens": tokens,
    "packed": packed,
}  # fmt: skip


def main() -> None:
    options = arguments(__doc__, rounds=5, only="")
    rounds = 1 if options.tiny else options.rounds
    wanted = options.only.split(",") if options.only else list(PARTS)
    with TemporaryDirectory() as folder, Peers(options.tiny) as peers:
        for name in wanted:
            PARTS[name](Path(folder), peers, rounds, options.tiny)


if __name__ == "__main__":
    sys.exit(run(main, __file__))
